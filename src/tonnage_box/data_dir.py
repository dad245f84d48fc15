"""Data folder of a box: its marker, its lock, and the paths in it.

    <data>/tonnage.json        marks the folder as ours: format version and the cluster's settings
    <data>/lock                held (flock) by the process that runs the cluster; its pid inside
    <data>/state.db            every object of the API server
    <data>/tls, <data>/kubeconfig, <data>/tonnage.log
    <data>/images              the image store; it may be there before a cluster is
    <data>/nodes/<node>/kubelet        as /var/lib/kubelet of a real node
    <data>/nodes/<node>/pools/<pool>   the volumes

Sockets are in a runtime folder of their own, because a unix socket's path may have 107 bytes at most.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import signal
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from tonnage.base.errors import BusyError, HostError, InvalidError, PreconditionError
from tonnage.host import tree
from tonnage.host.descriptor import closing
from tonnage.provisioning.capacity import tier
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy

FORMAT = 1
_LOST = "lost+found"  # in the root of a disk of its own
_FORKED_SECONDS, _PAUSE = 10.0, 0.01
_LONGEST_SOCKET = 107
_LONGEST_BELOW = 45  # what is put behind the folder's path, at most: <node>/registry/<driver>-reg.sock


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a cluster, stored so that `tonnage up` without options starts the same cluster again."""

    nodes: int = 1
    pools: list[str] = []
    runtime: str = "bwrap"
    compat: list[str] = []
    flexvolume: bool = False
    sources: list[str] = []
    fetch: list[str] = []
    scoring: ScoringStrategy = ScoringStrategy.LEAST_ALLOCATED
    capacity: str = tier.MODES[0]
    images: str = ""
    require_images: bool = False
    inline: list[str] = []
    starvation_guard: int = msgspec.field(default=0, name="hold_back")  # its name in folders of before


class _Marker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """clusters: uids of the clusters that the folder had; the last is the present one."""

    format: int
    settings: Settings
    clusters: list[str] = []


def default_folder() -> Path:
    """/var/lib/tonnage for root, else the user's data folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/tonnage")
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "tonnage"


def no_cluster(folder: Path) -> str:
    """Why there is none at a folder, and where a user may have one."""
    text, roots = f"there is no cluster in {folder}", Path("/var/lib/tonnage")
    if os.geteuid() != 0 and folder != roots and os.path.lexists(roots):
        return f"{text} (that of root is in {roots}: repeat with sudo)"
    return text


def short_enough(folder: Path, otherwise: Path) -> Path:
    """The folder where sockets can lie in it, else the other one."""
    return folder if len(os.fsencode(folder)) + _LONGEST_BELOW <= _LONGEST_SOCKET else otherwise


def missing(folder: Path) -> list[Path]:
    """The folder and those of its parents that are not there, the deepest first."""
    return [path for path in (folder, *folder.parents) if not os.path.lexists(path)]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove empty folders, the deepest first, up to the first that is not empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return


def _remove_folders(top: Path) -> None:
    """Remove a folder with all below it, but those that have files, as sockets of drivers that run on."""
    with suppress(OSError):
        for name, at in tree.below(top):
            with suppress(OSError):
                os.rmdir(name, dir_fd=at)
        top.rmdir()


def _pid_in(lock: int) -> str:
    return os.pread(lock, 32, 0).decode().strip()


def _lock(lock: int) -> None:
    """Take a lock, also one that only a killed process' child still has, until it becomes the program that it is for.

    Nothing finds such a child by its command line. Raises: BlockingIOError.
    """
    late = time.monotonic() + _FORKED_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _has_ended(_pid_in(lock)) or time.monotonic() > late:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _has_ended(pid: str) -> bool:
    try:
        process = os.pidfd_open(int(pid or "0"))
    except ProcessLookupError:
        return True
    except (ValueError, OSError):  # no pid
        return False
    with closing(process):
        return bool(select.select([process], [], [], 0)[0])


class DataFolder:
    """One data folder. open() takes its lock for this process; everything else needs no lock."""

    def __init__(self, path: Path) -> None:
        absolute = Path(os.path.abspath(path))
        self.path = absolute.parent.resolve() / absolute.name  # as the kernel's tables of mounts have it
        self.state = self.path / "state.db"
        self.tls = self.path / "tls"
        self.kubeconfig = self.path / "kubeconfig"
        self.log = self.path / "tonnage.log"
        self.images = self.path / "images"
        self._marker = self.path / "tonnage.json"
        self._fresh = self._marker.with_suffix(".new")  # a kill may leave one
        self._lock_file = self.path / "lock"
        self._lock: int | None = None
        self._made: list[Path] = []  # folders that open() made
        self.is_new = False
        """Whether open() found no cluster."""

    def node(self, name: str) -> Path:
        """The folder of a node."""
        return self.path / "nodes" / name

    def sockets(self) -> Path:
        """The folder for sockets: inside the data folder where its path is short enough, else below the system's."""
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        base = Path("/run") if os.geteuid() == 0 and Path("/run").is_dir() else Path(tempfile.gettempdir())
        return short_enough(self.path / "run", base / f"tonnage-{digest}")

    def exists(self) -> bool:
        """Whether this folder has a cluster of tonnage."""
        return self._marker.exists()

    def settings(self) -> Settings | None:
        """The stored settings, or None in a fresh folder.

        Raises: InvalidError when the folder is not a tonnage data folder.
        """
        marker = self._read()
        return marker.settings if marker is not None else None

    def clusters(self) -> list[str]:
        """uids of the clusters that the folder had; the last is the present one.

        Raises: InvalidError as settings() does.
        """
        marker = self._read()
        return marker.clusters if marker is not None else []

    def had_cluster(self) -> bool:
        """Whether an API server once served here: both are made only after its database is."""
        nodes = self.path / "nodes"
        return self.kubeconfig.exists() or (nodes.is_dir() and any(nodes.iterdir()))

    def _read(self) -> _Marker | None:
        if not self.exists():
            return None
        try:
            marker = msgspec.json.decode(self._marker.read_bytes(), type=_Marker)
        except (msgspec.MsgspecError, OSError) as failure:
            raise InvalidError(f"data folder {self.path}: tonnage.json cannot be read: {failure}") from failure
        if marker.format != FORMAT:
            raise InvalidError(
                f"data folder {self.path} has format {marker.format}, this tonnage writes {FORMAT}: use the version "
                "that made it, or another --data"
            )
        return marker

    def open(self, settings: Settings) -> None:
        """Take the folder for this process. A new one is made and gets the settings; others get them with keep().

        Raises: InvalidError (not ours, not writable, full) or BusyError (another process runs a cluster here).
        """
        self._check_ours()
        self._made = missing(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._take()
            self._check_ours()  # again: until now another process may have changed the folder
            self.path.chmod(0o700)
            self.is_new = not self.exists()
            if self.is_new:
                self._write(_Marker(FORMAT, settings))
            for folder in (self.sockets(), self.path / "nodes"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_sockets()  # another user may have been first
        except OSError as failure:
            with suppress(HostError):
                self.undo()
            self.close()
            raise InvalidError(
                f"data folder {self.path} cannot be used: {failure.strerror} ({failure.filename or self.path}); "
                "choose another with --data"
            ) from failure
        except InvalidError:
            self.close()
            raise

    def _check_sockets(self) -> None:
        """Check that only we can put sockets in their folder: every user can write in /tmp. Raises: InvalidError."""
        with suppress(FileNotFoundError):
            found = self.sockets().lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise InvalidError(
                    f"data folder {self.path}: its folder for sockets, {self.sockets()}, is a link, or others can write"
                    " in it: remove it, or choose a shorter path with --data"
                )

    def _check_ours(self) -> None:
        self._check_sockets()
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise InvalidError(f"data folder {self.path} is not a folder")
        own = (self._lock_file, self.log, self._fresh, self.images, self.path / _LOST)
        try:
            foreign = (
                self.path.exists()
                and not self.exists()
                and any(entry for entry in self.path.iterdir() if entry not in own)
            )
        except OSError as failure:
            raise InvalidError(f"data folder {self.path} cannot be read: {failure.strerror}") from failure
        if foreign:
            raise InvalidError(
                f"data folder {self.path} holds files that are not tonnage's (tonnage.json is missing): nothing was "
                "touched; choose an empty or new folder with --data"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder while the body runs. Raises: BusyError when another process uses it."""
        with suppress(OSError):  # on a read-only disk no process can lock it
            self._take(running=False)
        try:
            yield
        finally:
            self.close()

    def _take(self, *, running: bool = True) -> None:
        """running: whether this process is one that end_running() may end."""
        lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(lock)
        except BlockingIOError:
            pid = _pid_in(lock)
            os.close(lock)
            if not pid:
                raise BusyError(
                    f"data folder {self.path} is being cleaned or opened by another process: repeat"
                ) from None
            raise BusyError(
                f"data folder {self.path} is in use by process {pid}: use that cluster, end it with "
                f"`tonnage down --data {self.path}`, or choose another --data"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode() if running else b"", 0)
        self._lock = lock

    def keep(self, settings: Settings, cluster: str) -> None:
        """Write down settings and uid of a cluster that has started. Idempotent. Raises: InvalidError."""
        found = self._read() or _Marker(FORMAT, settings)
        clusters = [*(uid for uid in found.clusters if uid != cluster), cluster]
        fresh = _Marker(FORMAT, settings, clusters)
        if fresh == found:
            return
        try:
            self._write(fresh)
        except OSError as failure:
            raise InvalidError(f"data folder {self.path}: settings cannot be written: {failure.strerror}") from failure

    def _write(self, marker: _Marker) -> None:
        with open(self._fresh, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(marker)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._fresh, self._marker)

    def log_for_writing(self) -> BinaryIO:
        """The log of a detached cluster, open for appending. Raises: InvalidError as open() does."""
        self._check_ours()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            return open(self.log, "ab")
        except OSError as failure:
            raise InvalidError(
                f"data folder {self.path} cannot be used: {failure.strerror}; choose another with --data"
            ) from failure

    def close(self) -> None:
        """Give the folder back. Idempotent."""
        if self._lock is not None:
            if self.path not in self.sockets().parents:
                _remove_folders(self.sockets())
            os.close(self._lock)
            self._lock = None

    def running(self) -> int | None:
        """pid of the process that runs a cluster here, or None."""
        try:
            lock = os.open(self._lock_file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        with closing(lock):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = _pid_in(lock)
                return int(text) if text.isdigit() else -1  # taken, but not for running a cluster
        return None

    def end_running(self, *, seconds: float = 15.0) -> bool:
        """Ask the process that runs here to end and wait for it; False when none runs.

        Raises: PreconditionError when it does not end in time.
        """
        pid = self.running()
        if pid is None or pid <= 0:
            return False
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        with closing(process):
            signal.pidfd_send_signal(process, signal.SIGTERM)
            if not select.select([process], [], [], seconds)[0]:
                raise PreconditionError(f"process {pid} has not ended within {seconds:.0f} s; see {self.log}")
        return True

    def undo(self) -> None:
        """Remove what open() made for a cluster that never came up: its files, and the folders that were not there.

        A cluster that was there before stays as it is, and so does everything in a folder that another process holds.
        The caller has looked for volumes. Raises: HostError.
        """
        if self.is_new and self._lock is not None:
            self._empty(keep=(self.images,) if self._made else (self.log, self.images))
            remove_empty(self._made)

    def purge(self) -> None:
        """Remove the folder with all its content. The caller has unmounted everything below it."""
        self._check_ours()
        if not self.exists():
            return
        self._empty()
        with suppress(OSError):  # the root of a disk stays
            self.path.rmdir()

    def _empty(self, keep: Sequence[Path] = ()) -> None:
        last = (self._marker, self._lock_file)  # a purge that is killed can be repeated, and is alone until its end
        try:
            # Delete the database last: if other content outlives it, the next start reports the database as lost.
            for entry in sorted(self.path.iterdir(), key=lambda entry: (entry.name.startswith(self.state.name), entry)):
                if entry not in (*last, *keep) and entry.name != _LOST:
                    tree.remove(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            tree.remove(self.sockets())
            for file in last:
                file.unlink(missing_ok=True)
        except OSError as failure:
            raise HostError(
                f"cannot remove data folder {self.path}: {failure.strerror}; repeat when it can"
            ) from failure
