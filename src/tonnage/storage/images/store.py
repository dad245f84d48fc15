"""Image store: unpacked layers, and the images made of them, in a folder. Blocking.

    <store>/tonnage-images.json   marks the folder as a store: format version
    <store>/lock                  held (flock) while images are loaded or removed
    <store>/use.lock              held for a moment: shared to begin a use, exclusive to remove layers
    <store>/blobs/sha256/<hex>    manifests and configurations
    <store>/layers/<chain id>/    root, a layer unpacked on those below it, and layer.json
    <store>/images/<hash>.json    one name and its image
    <store>/uses/<hash>.json      layers that a folder elsewhere uses, until that folder is gone
    <store>/pulls/<hex>/          an OCI layout of an image that is being pulled, locked (flock)
    <store>/new-<random>          being written or removed; left by a kill, and removed by the next load or rm

Crash-only: everything appears by one rename, after it was synced. A name appears after its layers.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tonnage.base.errors import HostError, InvalidError, NotFoundError, TonnageError, host_errors
from tonnage.host import files, libc, tree
from tonnage.host.descriptor import closing, opened
from tonnage.storage.images import manifest, reference
from tonnage.storage.images.manifest import RunConfig

if TYPE_CHECKING:  # a box reads its store, and does not load into it
    from tonnage.storage.images.layer import LayerCounts, LayerLimits
    from tonnage.storage.images.source import ImageArchive, ImageSource, LayerSource
    from tonnage.storage.images.stream import Unpacked

FORMAT = 1
MARKER = "tonnage-images.json"
_NEW = "new-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_YOUNGEST = 120.0  # seconds
_PULL_SECONDS = 86400.0
_RESERVE = 64 << 20  # bytes of the disk that a load leaves free


class _StoreMarker(msgspec.Struct):
    format: int


class LayerRecord(msgspec.Struct, frozen=True):
    """layer.json. dropped: entries that were left out, as devices."""

    diff_id: str
    size: int
    entries: int
    dropped: int


class ImageRecord(msgspec.Struct, frozen=True):
    """An image by one of its names. layers: chain ids in hexadecimal, the lowest first; size: bytes unpacked."""

    name: str
    digest: str
    platform: str
    layers: list[str]
    size: int
    config: RunConfig = RunConfig()
    is_saved: bool = False
    is_pulled: bool = False
    """It can be pulled again, so it may be evicted."""

    @property
    def image_id(self) -> str:
        """What a container's status shows as imageID."""
        return self.digest if self.is_saved else f"{reference.parse(self.name).repository}@{self.digest}"


class _Use(msgspec.Struct):
    """uses/<hash>.json: folder uses layers for as long as it is there."""

    folder: str
    layers: list[str]


def is_store(path: Path) -> bool:
    """Whether a folder is a store."""
    return (path / MARKER).is_file()


class ImageStore:
    """A store. Reading needs no lock; several processes may use it at once."""

    def __init__(self, path: Path, *, limits: LayerLimits | None = None) -> None:
        self.path = path
        self._limits = limits
        self._blobs, self._layers = path / "blobs" / "sha256", path / "layers"
        self._images, self._uses, self._pulls = path / "images", path / "uses", path / "pulls"

    def images(self) -> list[ImageRecord]:
        """All images that can be read, sorted by name. Raises: InvalidError when the folder is no store of ours."""
        return sorted(self._records()[0], key=lambda record: record.name)

    def damaged(self) -> list[InvalidError]:
        """What is wrong with the names that cannot be read. Nothing is removed from the store while there are any."""
        return self._records()[1]

    def _records(self) -> tuple[list[ImageRecord], list[InvalidError]]:
        if not self.path.is_dir():
            return [], []
        self._check()
        found, damaged = [], []
        for path in _files(self._images):
            try:
                record = self._record(path)
            except InvalidError as failure:
                damaged.append(failure)
            else:
                found += [record] if record is not None else []
        return found, damaged

    def find(self, name: str) -> ImageRecord | None:
        """The image of a name, by its digest if it has one. Raises: InvalidError (a bad name)."""
        wanted = reference.parse(name)
        if not wanted.digest:
            return self._record(self._images / _file_of(str(wanted)))
        # Pulled by the digest of an index, which no record has.
        if (record := self._record(self._images / _file_of(f"{wanted.repository}@{wanted.digest}"))) is not None:
            return record
        for record in self.images():
            if record.digest == wanted.digest and reference.parse(record.name).repository == wanted.repository:
                return record
        return None

    def layer(self, chain: str) -> Path:
        """The folder of an unpacked layer."""
        return self._layers / chain / "root"

    def _record(self, path: Path) -> ImageRecord | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=ImageRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as failure:
            raise InvalidError(
                f"image store {self.path}: {path} cannot be read: {failure}; load its image again, or remove the file"
            ) from failure

    def _check(self) -> None:
        try:
            marker = msgspec.json.decode((self.path / MARKER).read_bytes(), type=_StoreMarker)
        except FileNotFoundError:
            if any(not entry.startswith(_NEW) and entry != "lock" for entry in os.listdir(self.path)):
                raise InvalidError(f"{self.path} is not an image store: name an empty or new folder") from None
            return
        except (OSError, msgspec.MsgspecError) as failure:
            raise InvalidError(f"image store {self.path}: {MARKER} cannot be read: {failure}") from failure
        if marker.format != FORMAT:
            raise InvalidError(f"image store {self.path} has format {marker.format}, this tonnage reads {FORMAT}")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the store, made if it is missing, and remove what a kill has left. Raises: HostError, InvalidError."""
        with host_errors(f"image store {self.path} cannot be changed"):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            with opened(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._check()
                for name in os.listdir(self.path):
                    if name.startswith(_NEW):
                        _remove(self.path / name)
                if not is_store(self.path):  # first: without it the next load would not know the folder as ours
                    self._write(self.path / MARKER, _StoreMarker(FORMAT))
                for folder in (self._blobs, self._layers, self._images, self._uses, self._pulls):
                    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._remove_left_pulls()
                yield

    def _remove_left_pulls(self) -> None:
        """Remove pulls that ended long ago without success; a younger one may be continued."""
        for path in _entries(self._pulls):
            with suppress(FileNotFoundError), opened(path, _FOLDER) as fd:
                if time.time() - os.fstat(fd).st_mtime > _PULL_SECONDS and files.try_lock(fd):
                    _remove(path)

    @contextmanager
    def pulling(self, digest: str, wait: Callable[[], None]) -> Iterator[Path]:
        """The locked folder of a pull, with what an earlier one left there; removed when the body succeeds.

        wait: called again and again while another pull of the digest runs, may raise. Raises: HostError, InvalidError.
        """
        with self._changing():
            pass
        path = self._pulls / digest.partition(":")[2]
        with host_errors(f"image store {self.path} cannot be changed"), ExitStack() as stack:
            while True:
                path.mkdir(mode=0o700, exist_ok=True)
                fd = stack.enter_context(opened(path, _FOLDER))
                if not files.try_lock(fd):
                    wait()
                elif files.is_at(path, fd):
                    break
            yield path
            self.release(str(path))
            _remove(path)

    def missing(self, diff_ids: Sequence[str], folder: str) -> list[int]:
        """Which layers of an image, from 0 on, are not here; those that are here stay while folder is there.

        Raises: HostError, InvalidError.
        """
        while True:
            chains: list[str] = []
            for diff_id in diff_ids:
                chains.append(_chain(chains[-1] if chains else "", diff_id))
            found = [number for number, chain in enumerate(chains) if not self.layer(chain).is_dir()]
            if self.hold([chain for number, chain in enumerate(chains) if number not in found], folder):
                return found

    def evict(self, is_wanted: Callable[[], bool], *, now: float) -> list[ImageRecord]:
        """Remove pulled images without users, the least recently used first, for as long as is_wanted() says so.

        Those that were used in the last two minutes stay. Raises: HostError, InvalidError.
        """
        evicted: list[ImageRecord] = []
        with self._changing():
            if self.damaged():  # then no layer is removed
                return []
            in_use = {tuple(use.layers) for use in self._living()}
            unused = [record for record in self.images() if record.is_pulled and tuple(record.layers) not in in_use]
            for record in sorted(unused, key=self._last_use):
                if now - self._last_use(record) < _YOUNGEST or not is_wanted():
                    break
                os.unlink(self._images / _file_of(record.name))
                files.sync(self._images)
                self._collect()
                evicted.append(record)
        return evicted

    def _last_use(self, record: ImageRecord) -> float:
        return os.stat(self._images / _file_of(record.name)).st_mtime

    def pin(self, name: str) -> ImageRecord:
        """Keep an image from being evicted. Idempotent. Raises: NotFoundError, InvalidError, HostError."""
        with self._changing():
            record = msgspec.structs.replace(self._found(name), is_pulled=False)
            self._write(self._images / _file_of(record.name), record)
        return record

    def _found(self, name: str) -> ImageRecord:
        wanted = str(reference.parse(name))
        record = self._record(self._images / _file_of(wanted))
        if record is None:
            raise NotFoundError(f"image {wanted}: it is not in store {self.path}; see `tonnage images list`")
        return record

    def sizes(self) -> tuple[int, int, int]:
        """Number of layers, their bytes, and the bytes of those that no folder uses. Raises: InvalidError."""
        used = {chain for path in _files(self._uses) for chain in self._layers_of(path)}
        found = {path.name: self._layer_record(path.name).size for path in _entries(self._layers)}
        return len(found), sum(found.values()), sum(size for chain, size in found.items() if chain not in used)

    def load(self, path: Path, name: str = "", *, is_pulled: bool = False) -> list[ImageRecord]:
        """Load all images of a layout or archive, under their own names or the given one. Idempotent.

        is_pulled: they may be evicted.

        Raises: InvalidError, NotFoundError, UnsupportedError (what the image is), HostError.
        """
        from tonnage.storage.images import source

        given = str(reference.parse(name)) if name else ""
        with source.opened(path) as archive:
            found = archive.images(manifest.machine())
            if given and len(found) != 1:
                raise InvalidError(f"{path}: it has {len(found)} images: load it without --name")
            with self._changing():
                records = []
                try:
                    for image in found:
                        records += self._load(archive, image, (given,) if given else image.names, is_pulled=is_pulled)
                except TonnageError:
                    self._collect()  # layers of an image that is rejected
                    raise
                self._collect()
        return records

    def _load(
        self, archive: ImageArchive, image: ImageSource, names: Sequence[str], *, is_pulled: bool
    ) -> list[ImageRecord]:
        chains: list[str] = []
        size = 0
        for number, layer in enumerate(image.layers, 1):
            chain = _chain(chains[-1] if chains else "", layer.diff_id)
            if not (self._layers / chain).is_dir():
                self._unpack(archive, layer, chain, chains, f"{archive.what}: layer {number}")
            chains.append(chain)
            size += self._layer_record(chain).size
        for digest, data in image.documents.items():
            if not (target := self._blobs / digest.partition(":")[2]).exists():
                self._put(target, data)
        platform = f"{image.config.os}/{image.config.architecture}"
        run = image.config.config or RunConfig()
        records = [
            ImageRecord(name, image.digest, platform, chains, size, run, image.is_saved, is_pulled) for name in names
        ]
        for record in records:
            self._write(self._images / _file_of(record.name), record)
        return records

    def _layer_record(self, chain: str) -> LayerRecord:
        try:
            return msgspec.json.decode((self._layers / chain / "layer.json").read_bytes(), type=LayerRecord)
        except (OSError, msgspec.MsgspecError) as failure:
            raise InvalidError(f"image store {self.path}: layer {chain} cannot be read: {failure}") from failure

    def _unpack(self, archive: ImageArchive, layer: LayerSource, chain: str, below: Sequence[str], what: str) -> None:
        """Unpack a layer into a new folder, and give that its name when it is whole and synced."""
        from tonnage.storage.images.layer import LayerLimits, LayerUnpacker
        from tonnage.storage.images.stream import Unpacked
        from tonnage.storage.images.tar_reader import TarReader

        limits = self._limits or LayerLimits()
        new = self._fresh()
        try:
            (new / "root").mkdir(parents=True, mode=0o755)
            blob = archive.open(layer, what)
            disk = os.statvfs(self.path)
            most = min(limits.size, max(disk.f_bavail * disk.f_frsize - _RESERVE, 0))
            content = Unpacked(blob, layer.compression, what, most=most + (_RESERVE if layer.compression else 0))
            with ExitStack() as stack:
                root = stack.enter_context(opened(new / "root", _FOLDER))
                lowers = [stack.enter_context(opened(self.layer(lower), _FOLDER)) for lower in reversed(below)]
                unpacker = LayerUnpacker(root, lowers, what, replace(limits, size=most))
                if layer.file:
                    counts = _write_file(new / "root", layer.file, content)
                else:
                    counts = unpacker.unpack(TarReader(content, what))
            while content.read(1 << 20):
                pass
            blob.finish()
            if not layer.is_artifact and content.digest() != layer.diff_id:
                raise InvalidError(f"{what}: unpacked it has digest {content.digest()}, want {layer.diff_id}: damaged")
            record = LayerRecord(layer.diff_id, counts.size, counts.entries, counts.dropped)
            (new / "layer.json").write_bytes(msgspec.json.encode(record))
            with opened(new, _FOLDER) as fd:
                libc.syncfs(fd)
            os.rename(new, self._layers / chain)
            files.sync(self._layers)
        except (TonnageError, OSError) as failure:
            _remove(new)
            if isinstance(failure, OSError):
                raise _rejection(what, failure) from failure
            raise

    def remove(self, name: str) -> ImageRecord:
        """Remove a name, and the layers that nothing uses any more. Raises: NotFoundError, InvalidError, HostError."""
        with self._changing():
            record = self._found(name)
            os.unlink(self._images / _file_of(record.name))
            files.sync(self._images)
            self._collect()
        return record

    def _collect(self) -> None:
        """Remove layers and blobs that no image and no folder uses."""
        with opened(self.path / "use.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            images, damaged = self._records()
            if damaged:  # nobody knows what they use
                return
            used = {chain for record in images for chain in record.layers}
            used |= {chain for use in self._living() for chain in use.layers}
            unused = [path for path in _entries(self._layers) if path.name not in used]
            away = [(path, self._fresh()) for path in unused]
            for path, new in away:
                os.rename(path, new)
        documents = set().union(*(self._documents(record) for record in images))
        for path in _files(self._blobs):
            if path.name not in documents:
                path.unlink()
        for _, new in away:
            _remove(new)

    def _documents(self, record: ImageRecord) -> set[str]:
        """The blobs of an image, by their file names."""
        name = record.digest.partition(":")[2]
        names = {name}
        if not record.is_saved:
            with suppress(OSError, msgspec.MsgspecError):
                found = msgspec.json.decode((self._blobs / name).read_bytes(), type=manifest.ImageManifest)
                names.add(found.config.hex)
        return names

    def _living(self) -> Iterator[_Use]:
        """Uses whose folder is there; the records of others are removed."""
        for path in _files(self._uses):
            with suppress(msgspec.MsgspecError):  # emptied by a power cut, which ended the use too
                use = msgspec.json.decode(path.read_bytes(), type=_Use)
                if os.path.isdir(use.folder):
                    yield use
                    continue
            path.unlink(missing_ok=True)

    def uses(self) -> dict[str, int]:
        """How many folders use each layer, by chain id."""
        counts: dict[str, int] = {}
        for path in _files(self._uses):
            for chain in self._layers_of(path)[-1:]:
                counts[chain] = counts.get(chain, 0) + 1
        return counts

    def _layers_of(self, path: Path) -> list[str]:
        """The layers of a use; none where its folder is gone."""
        with suppress(msgspec.MsgspecError, OSError):
            use = msgspec.json.decode(path.read_bytes(), type=_Use)
            if os.path.isdir(use.folder):
                return use.layers
        return []

    def use(self, name: str, folder: str) -> ImageRecord | None:
        """Find an image and protect its layers until folder is gone; None if it is not in the store. Idempotent.

        folder: exists, and is named by an absolute path. Raises: InvalidError, HostError.
        """
        if not is_store(self.path):
            return None
        with host_errors(f"image store {self.path} cannot be used"), self._beginning() as writable:
            record = self.find(name)
            if record is not None and writable:
                self._protect(folder, record.layers)
                with suppress(FileNotFoundError):
                    os.utime(self._images / _file_of(record.name))  # its last use
            return record

    def hold(self, layers: Sequence[str], folder: str) -> bool:
        """Protect layers, by their chain ids, until folder is gone; False where one is missing. Idempotent.

        Raises: HostError.
        """
        if not is_store(self.path):
            return False
        with host_errors(f"image store {self.path} cannot be used"), self._beginning() as writable:
            if not all(self.layer(chain).is_dir() for chain in layers):
                return False
            if writable:
                self._protect(folder, layers)
            return True

    def _protect(self, folder: str, layers: Sequence[str]) -> None:
        use = _Use(folder, list(layers))
        files.replace(self._uses / _file_of(folder), msgspec.json.encode(use))  # not synced: a power cut ends the use

    @contextmanager
    def _beginning(self) -> Iterator[bool]:
        """Hold off the removal of layers; False for a store on a read-only disk, where nothing can be removed."""
        try:
            lock = os.open(self.path / "use.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            if failure.errno != errno.EROFS:
                raise
            yield False
            return
        with closing(lock):
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield True

    def release(self, folder: str) -> None:
        """Forget that a folder uses layers. Idempotent."""
        with suppress(OSError):  # a use without its folder counts for nothing
            os.unlink(self._uses / _file_of(folder))

    def _fresh(self) -> Path:
        return self.path / f"{_NEW}{secrets.token_hex(8)}"

    def _write(self, path: Path, record: msgspec.Struct) -> None:
        self._put(path, msgspec.json.encode(record))

    def _put(self, path: Path, data: bytes) -> None:
        new = self._fresh()
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, path)
        files.sync(path.parent)


def _write_file(root: Path, parts: Sequence[str], content: Unpacked) -> LayerCounts:
    """Write the one file of an artifact's layer into its root, which is empty."""
    from tonnage.storage.images.layer import LayerCounts

    path = root.joinpath(*parts)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(path, "xb", opener=partial(os.open, mode=0o644)) as file:
        while data := content.read(1 << 20):
            file.write(data)
    return LayerCounts(content.count, 1, 1)


def _chain(below: str, diff_id: str) -> str:
    """Chain id of a layer (OCI image-spec): it names the layer together with all below it."""
    return hashlib.sha256(f"sha256:{below} {diff_id}".encode()).hexdigest() if below else diff_id.partition(":")[2]


def _file_of(name: str) -> str:
    return f"{hashlib.sha256(os.fsencode(name)).hexdigest()}.json"


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _files(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_file()]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        tree.remove(path)
    else:
        path.unlink(missing_ok=True)


def _rejection(what: str, failure: OSError) -> TonnageError:
    if failure.errno in (errno.EPERM, errno.EACCES) and os.geteuid() != 0:
        return HostError(f"{what}: cannot be unpacked: {failure.strerror}; run it as root (sudo)")
    return HostError(f"{what}: cannot be unpacked: {failure.strerror or failure}")
