"""Records and files of a driver's inline volumes, in one tmpfs. Blocking. Used by the inline driver.

`<volume>/record` comes first and goes last, so a volume without a record is a leftover that nothing shows. The record
holds no token, no secret and no attribute that is one.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tonnage.base.errors import ExhaustedError, HostError, host_errors
from tonnage.csi.inline.base import Files, Filled, InlinePod, Tree, WritableLayer
from tonnage.csi.inline.volume import InlinePhase, InlineRequest
from tonnage.host import atomic_writer, files, mount
from tonnage.host.atomic_writer import Content

log = logging.getLogger(__name__)
FORMAT = 1
MEMORY = 64 << 20
"""Bytes of a driver's tmpfs by default."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MAPPED = "h-"
_OPTIONS = ("nodev", "nosuid", "noexec")
_GROUP_READS = 0o440
_PAGE = 4096


class InlineRecord(msgspec.Struct, frozen=True):
    """What is stored of a volume. hidden: whether it had tokens, secrets or secret attributes, which are not stored."""

    handle: str
    target: str
    namespace: str
    pod: str
    uid: str
    phase: InlinePhase
    format: int = FORMAT
    service_account: str = ""
    fs_group: int | None = None
    read_only: bool = False
    persistent: bool = False
    attributes: dict[str, str] = {}
    hidden: bool = False
    due: float | None = None
    error: str = ""
    stale: float = 0.0
    layers: list[str] | None = None
    path: str = ""
    writable: dict[str, str | int | dict[str, str]] | None = None

    def request(self) -> InlineRequest:
        """Return the publish call, without its secrets."""
        pod = InlinePod(self.namespace, self.pod, self.uid, self.service_account, fs_group=self.fs_group)
        return InlineRequest(self.handle, self.target, pod, self.attributes, self.read_only, self.persistent)

    @property
    def key(self) -> str:
        """The volume's key."""
        return self.request().key

    def tree(self) -> Tree | None:
        """Return the tree that is shown, None for files."""
        if self.layers is None:
            return None
        writable = msgspec.convert(self.writable, WritableLayer) if self.writable is not None else None
        return Tree(tuple(map(Path, self.layers)), self.path, writable)

    def with_filled(self, filled: Filled) -> InlineRecord:
        """Return the record of a volume that shows this."""
        if not isinstance(filled, Tree):
            return self
        layers, writable = [str(layer) for layer in filled.layers], filled.writable
        stored = None
        if writable is not None:
            stored = {"size": writable.size, "pool": writable.pool, "parameters": dict(writable.parameters)}
        changed: InlineRecord = msgspec.structs.replace(self, layers=layers, path=filled.path, writable=stored)
        return changed


def folder_name(handle: str) -> str:
    """Return the name of a volume's folder: the handle where that is a plain name, else its hash."""
    if _PLAIN.fullmatch(handle) and not handle.startswith(_MAPPED):
        return handle
    return _MAPPED + hashlib.sha256(handle.encode()).hexdigest()


@dataclass(frozen=True)
class MemoryStore:
    """The volumes below a folder. size: bytes of all together."""

    folder: Path
    size: int = MEMORY

    def open(self) -> None:
        """Mount the tmpfs unless it is mounted. Idempotent. Raises: HostError."""
        with host_errors(f"cannot make {self.folder}"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if mount.is_mount(self.folder):
            return
        options = [f"size={self.size}", "mode=0700", f"nr_inodes={max(self.size // _PAGE, 1024)}", *_OPTIONS]
        try:
            mount.mount("tmpfs", self.folder, "tmpfs", [*options, "noswap"])
        except HostError:  # Linux before 6.4
            mount.mount("tmpfs", self.folder, "tmpfs", options)
            if has_swap():
                log.warning("files of inline volumes may be swapped to disk: turn swap off folder=%s", self.folder)

    def volume(self, key: str) -> Path:
        """Return a volume's folder."""
        return self.folder / folder_name(key)

    def data(self, key: str) -> Path:
        """Return the folder that a volume of Files shows."""
        return self.volume(key) / "data"

    def source(self, key: str) -> Path:
        """Return the folder that belongs to the source."""
        return self.volume(key) / "source"

    def save(self, record: InlineRecord) -> None:
        """Write a volume's record, and make its folder for the source. Idempotent.

        Raises: HostError, ExhaustedError.
        """
        folder = self.volume(record.key)
        with _full(self), host_errors(f"inline volume {record.handle}: cannot write its record"):
            folder.mkdir(mode=0o700, exist_ok=True)
            files.replace(folder / "record", msgspec.json.encode(record))
            (folder / "source").mkdir(mode=0o700, exist_ok=True)

    def write(self, key: str, files: Mapping[str, Content], group: int | None) -> None:
        """Replace a volume's files, all at once. Raises: InvalidError, ExhaustedError, HostError."""
        folder = self.data(key)
        with _full(self):
            with host_errors(f"cannot make {folder}"):
                folder.mkdir(mode=0o755, exist_ok=True)
            if group is not None:
                files = {path: replace(one, mode=one.mode | _GROUP_READS) for path, one in files.items()}
            atomic_writer.write(str(folder), files, gid=-1 if group is None else group)

    def read(self, key: str) -> Files:
        """Return the files that are shown. Raises: HostError."""
        return Files(atomic_writer.read(str(self.data(key))))

    def records(self) -> Iterator[InlineRecord]:
        """Return the records of all volumes; a folder without one is removed. Raises: HostError.

        A damaged record is reported and left alone, since a pod may use its volume; unpublishing removes it.
        """
        with host_errors(f"cannot read {self.folder}"):
            found = sorted(os.listdir(self.folder))
        for name in found:
            try:
                yield msgspec.json.decode((self.folder / name / "record").read_bytes(), type=InlineRecord)
            except FileNotFoundError:
                log.warning("leftover without a record removed folder=%s", self.folder / name)
                shutil.rmtree(self.folder / name, ignore_errors=True)
            except (OSError, msgspec.MsgspecError) as failure:
                log.error("record of an inline volume is damaged folder=%s error=%s", self.folder / name, failure)

    def remove(self, key: str) -> None:
        """Remove a volume: its files, then its record. Idempotent. Raises: HostError."""
        folder = self.volume(key)
        with host_errors(f"inline volume {key}: cannot remove its files"):
            for part in ("data", "source"):
                with suppress(FileNotFoundError):
                    shutil.rmtree(folder / part)
            for name in ("record.new", "record"):
                (folder / name).unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                os.rmdir(folder)

    def used(self) -> int:
        """Return the bytes of all volumes, 0 where nothing is mounted."""
        with suppress(OSError):
            found = os.statvfs(self.folder)
            return (found.f_blocks - found.f_bfree) * found.f_frsize
        return 0


@dataclass(frozen=True)
class RecordedVolume:
    """A volume of an inline driver, as a program reads it that does not run the driver. size: bytes of its files."""

    driver: str
    record: InlineRecord
    size: int


def recorded(kubelet: Path) -> list[RecordedVolume]:
    """All volumes of the inline drivers below a kubelet's directory; what cannot be read is left out. Blocking."""
    found = []
    for path in sorted(kubelet.glob("plugins/*/mem/*/record")):
        with suppress(OSError, msgspec.MsgspecError):
            record = msgspec.json.decode(path.read_bytes(), type=InlineRecord)
            files = (os.lstat(one).st_size for one in path.parent.glob("data/..data/**/*") if one.is_file())
            found.append(RecordedVolume(path.parts[-4], record, sum(files)))
    return found


class _full:  # noqa: N801  # reads as a context manager
    """Raise ExhaustedError with both numbers for a full tmpfs."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        cause = failure.__cause__ if isinstance(failure, HostError) else failure
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            raise ExhaustedError(
                f"memory of inline volumes is full: {self._store.used()} of {self._store.size} bytes are in use; "
                "raise memory= of --inline"
            ) from None


def has_swap() -> bool:
    """Return whether this machine swaps to disk."""
    with suppress(OSError):
        return len(Path("/proc/swaps").read_text().splitlines()) > 1
    return False
