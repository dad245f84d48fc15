"""Filling of one volume's root with a content. Blocking; needs root.

The root is an open directory, empty at the beginning. Nothing is written outside of it, and no symlink is followed.
What does not fit is rejected before the first byte where the size is known, and stops at the volume's size otherwise.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tonnage.base.errors import (
    BusyError,
    HostError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
    PreconditionError,
)
from tonnage.host import libc, mount, nofollow, tree
from tonnage.host.descriptor import opened
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.content import s3
from tonnage.storage.content.access import ContentAccess, Progress, pause, stoppable
from tonnage.storage.content.http import Download, Fetcher, RestartError, credentials
from tonnage.storage.content.spec import ContentSpec, FolderSpec, ImageSpec, S3Spec, UrlSpec
from tonnage.storage.images.layer import LayerLimits, LayerUnpacker
from tonnage.storage.images.store import ImageStore
from tonnage.storage.images.stream import Blob, Unpacked
from tonnage.storage.images.tar_reader import TarReader
from tonnage.storage.pools.fs import populate

_CHUNK = 1 << 20
_SMALL = 64 << 20
_BEGINNINGS = 3
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_SECONDS = 7 * 86400.0
_COMPRESSIONS = {"tar": "", "tar.gz": "gzip", "tar.zst": "zstd"}


@dataclass(frozen=True)
class Target:
    """Where a content goes. root: the open root; size: bytes of the volume; work: a folder for a mount meanwhile."""

    root: int
    size: int
    work: Path


def fill(
    content: ContentSpec, target: Target, access: ContentAccess, secrets: Mapping[str, str], progress: Progress
) -> None:
    """Empty the root, fill it and make that durable. Idempotent.

    Raises: InvalidError, OutOfRangeError (it does not fit), PreconditionError and NotFoundError (the source is not
    there), UnavailableError (now), StoppedError, HostError.
    """
    progress.add(0)  # it may have been stopped before it began
    access.check(content)
    for attempt in range(_BEGINNINGS):
        progress.done = 0
        with _rejections(content, target.size, progress):
            tree.empty(nofollow.by_fd(target.root, "."))
            try:
                _fill(content, target, access, secrets, progress)
            except RestartError:
                if attempt + 1 == _BEGINNINGS:
                    raise
                continue
            libc.syncfs(target.root)
        return


def _fill(
    content: ContentSpec, target: Target, access: ContentAccess, secrets: Mapping[str, str], progress: Progress
) -> None:
    if isinstance(content, FolderSpec):
        populate.fill(access.folder(content), target.root, target.size, stop=progress.wake)
    elif isinstance(content, ImageSpec):
        _fill_from_image(content, target, access.stores, progress)
    elif isinstance(content, UrlSpec):
        with _fetcher(access, progress).get(content.url, credentials(secrets)) as download:
            _fill_from_url(content, target, download, progress)
    else:
        _fill_from_s3(content, target, access, secrets, progress)


def _fetcher(access: ContentAccess, progress: Progress) -> Fetcher:
    """What downloads; a stop ends its pauses, and what blocks on its connection."""
    return Fetcher(access.policy, access.tls, access.sleep or partial(pause, progress), progress.watch)


@contextmanager
def _rejections(content: ContentSpec, size: int, progress: Progress) -> Iterator[None]:
    try:
        with stoppable(progress):
            yield
    except OSError as failure:
        if failure.errno in _FULL:
            raise _too_large(content, size) from failure
        raise HostError(f"{content}: the volume cannot be written: {failure.strerror}") from failure


def _too_large(content: object, size: int, needs: int | None = None) -> OutOfRangeError:
    has = f"has {from_bytes(needs)} and" if needs is not None else "is larger than the volume: it"
    return OutOfRangeError(f"{content} {has} does not fit into {from_bytes(size)}: ask for more")


# Images


def _fill_from_image(content: ImageSpec, target: Target, stores: Sequence[Path], progress: Progress) -> None:
    work = target.work
    with suppress(FileExistsError):
        os.mkdir(work, 0o700)
    mount.umount(work)  # left by a kill
    for store in map(ImageStore, stores):
        if (record := store.use(content.reference, str(work))) is None:
            continue
        try:
            _copy_image([store.layer(chain) for chain in reversed(record.layers)], content, target, progress)
        finally:
            with suppress(OSError):
                os.rmdir(work)
            store.release(str(work))
        return
    with suppress(OSError):
        os.rmdir(work)
    where = ", ".join(map(str, stores))
    raise PreconditionError(f"{content} is not in an image store of this node ({where}): load it there")


def _copy_image(layers: Sequence[Path], content: ImageSpec, target: Target, progress: Progress) -> None:
    """Copy what layers, the highest first, show together. Raises: BusyError where they were removed meanwhile.

    A store that is mounted read-only is not locked by this: others may remove its layers during the copy.
    """
    with ExitStack() as stack:
        lowers: list[int] = []
        try:
            for path in layers:
                lowers.append(os.open(path, _FOLDER))
                stack.callback(os.close, lowers[-1])
            _copy_layers(layers, lowers, content, target, progress)
        finally:  # a missing layer explains another failure as well
            if not all(map(_is_there, layers, [*lowers, *[-1] * len(layers)])):
                raise BusyError(f"{content} was removed from its image store while it was copied; it is tried again")


def _copy_layers(
    layers: Sequence[Path], lowers: Sequence[int], content: ImageSpec, target: Target, progress: Progress
) -> None:
    if not layers:
        return
    if len(layers) == 1:  # an overlay wants two
        _copy_folder(content, layers[0], target, progress)
        return
    mount.overlay(target.work, lowers, options=("ro", "nosuid", "nodev"))
    try:
        _copy_folder(content, target.work, target, progress)
    finally:
        mount.umount(target.work)


def _is_there(path: Path, opened: int) -> bool:
    """Whether a path leads to the open folder still, -1 where there was none. A store renames what it removes."""
    try:
        return opened >= 0 and os.path.samestat(os.lstat(path), os.fstat(opened))
    except FileNotFoundError:
        return False


def _copy_folder(content: ImageSpec, folder: Path, target: Target, progress: Progress) -> None:
    try:
        populate.fill(folder, target.root, target.size, stop=progress.wake)
    except (OutOfRangeError, InvalidError, PreconditionError) as failure:  # people know the image, not its folder
        raise type(failure)(str(failure).replace(f"source {folder}", str(content))) from failure


# URLs


def _fill_from_url(content: UrlSpec, target: Target, download: Download, progress: Progress) -> None:
    progress.total = download.size
    _check_fits(content, target, download.size)
    blob = _Counted(Blob(download, str(content)), progress)
    if content.unpack == "none":
        name = _file_name(unquote(urlsplit(content.url).path))
        _write_file(target.root, name, blob, target.size, content)
    else:
        try:
            _unpack(content, target, blob)
        except (InvalidError, OutOfRangeError) as failure:
            # Damage may look like anything: who reads "wrong checksum of a header" should know of the digest. But a
            # fault of what is large is reported at once.
            if download.size is not None and download.size <= _SMALL:
                _check_digest(content, blob, why=f": {failure}")
            raise
    _check_digest(content, blob)


def _check_digest(content: UrlSpec | S3Spec, blob: _Counted, why: str = "") -> None:
    """Read the rest and compare the digest. why: what was found already. Raises: InvalidError."""
    found = blob.finish().partition(":")[2]
    if content.sha256 and found != content.sha256:
        raise InvalidError(f"{content}: its sha256 is {found}, want {content.sha256}: nothing of it stays{why}")


class _Counted:
    """A blob whose bytes are counted as progress."""

    def __init__(self, blob: Blob, progress: Progress) -> None:
        self._blob, self._progress = blob, progress

    @property
    def count(self) -> int:
        return self._blob.count

    def read(self, size: int, /) -> bytes:
        data = self._blob.read(size)
        self._progress.add(len(data))
        return data

    def finish(self) -> str:
        while self.read(_CHUNK):
            pass
        return self._blob.finish()


def _unpack(content: UrlSpec, target: Target, blob: _Counted) -> None:
    what = str(content)
    most = target.size
    plain = Unpacked(Blob(blob, what), _COMPRESSIONS[content.unpack], what, most=most + (most >> 2) + _CHUNK, ratio=0)
    limits = LayerLimits(size=most, entries=max(1000, most // 256), seconds=_SECONDS)
    with opened(".", _FOLDER, dir_fd=target.root) as root:
        LayerUnpacker(root, (), what, limits, is_layer=False).unpack(TarReader(plain, what))
    while plain.read(_CHUNK):
        pass


def _file_name(path: str) -> str:
    name = path.rstrip("/").rpartition("/")[2]
    is_usable = name not in ("", ".", "..") and "\0" not in name and len(os.fsencode(name)) <= 255
    return name if is_usable else "content"


def _write_file(at: int, name: str, blob: _Counted, size: int, content: ContentSpec) -> None:
    """Write a file of at most size bytes. Raises: OutOfRangeError, OSError."""
    with opened(name, _NEW_FILE, dir_fd=at) as fd:
        while data := blob.read(_CHUNK):
            if blob.count > size:
                raise _too_large(content, size)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        os.fchmod(fd, 0o644)


def _check_fits(content: ContentSpec, target: Target, needs: int | None) -> None:
    if needs is None:
        return
    disk = os.fstatvfs(target.root)
    if needs > min(target.size, disk.f_bfree * disk.f_frsize):
        raise _too_large(content, target.size, needs)


# S3


def _fill_from_s3(
    content: S3Spec, target: Target, access: ContentAccess, secrets: Mapping[str, str], progress: Progress
) -> None:
    fetcher = _fetcher(access, progress)
    sign = s3.signer(s3.keys_of(secrets), content.region, access.now)
    if content.key:
        with fetcher.get(s3.url_of(content, content.key), sign=sign) as download:
            if download.size is None and not content.sha256:  # the end could not be told from a break
                raise InvalidError(f"{content}: the server does not say its size: name its sha256 in the Content")
            progress.total = download.size
            _check_fits(content, target, download.size)
            blob = _Counted(Blob(download, str(content)), progress)
            _write_file(target.root, _file_name(content.key), blob, target.size, content)
        _check_digest(content, blob)
        return
    found = list(s3.listed(fetcher, content, sign, progress))
    if not found:
        raise NotFoundError(f"{content}: no object of the bucket begins with that")
    progress.total = sum(item.size for item in found)
    _check_fits(content, target, progress.total)
    for item in found:
        parts = _parts(content, item.key)
        if item.key.endswith("/"):
            os.close(_folder(target.root, parts))
            continue
        at = _folder(target.root, parts[:-1])
        try:
            headers = {"If-Match": item.etag} if item.etag else {}
            with fetcher.get(s3.url_of(content, item.key), headers, sign=sign) as download:
                blob = _Counted(Blob(download, f"{content}: {item.key}", size=item.size), progress)
                _write_file(at, parts[-1], blob, target.size, content)
                blob.finish()
        except FileExistsError:
            raise InvalidError(
                f"{content}: object {item.key[:120]!r} has the name of another, or of a folder"
            ) from None
        finally:
            os.close(at)


def _parts(content: S3Spec, key: str) -> list[str]:
    """The path of an object below the root. Raises: InvalidError for one that no volume can have."""
    folder = content.prefix.rpartition("/")[0]
    path = key[len(folder) + 1 :] if folder else key
    if not key.startswith(content.prefix):
        raise InvalidError(f"{content}: the server lists {key[:120]!r}, which does not begin with that")
    parts = path.rstrip("/").split("/") if path.rstrip("/") else []
    is_usable = all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts)
    if not is_usable or "\0" in path or len(parts) > 100 or (not parts and not key.endswith("/")):
        raise InvalidError(f"{content}: object {key[:120]!r}: its key cannot be a path below the volume's root")
    return parts


def _folder(root: int, parts: Sequence[str]) -> int:
    """Open a folder below the root, made where it is missing; the caller closes it. Raises: InvalidError, OSError."""
    at = os.open(".", _FOLDER, dir_fd=root)
    for part in parts:
        try:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
            inner = os.open(part, _FOLDER, dir_fd=at)
        except NotADirectoryError:
            raise InvalidError(f"object {'/'.join(parts)[:120]!r}: a part of its key is an object too") from None
        finally:
            os.close(at)
        at = inner
    return at
