"""Image store: unpacked layers, and the images made of them, in a folder. Blocking.

    <store>/tonnage-images.json   marks the folder as a store: format version
    <store>/lock                  held (flock) while images are loaded or removed
    <store>/use.lock              held for a moment: shared to begin a use, exclusive to remove layers
    <store>/blobs/sha256/<hex>    manifests and configurations
    <store>/layers/<chain id>/    root, a layer unpacked on those below it, and layer.json
    <store>/images/<hash>.json    one name and its image
    <store>/uses/<hash>.json      layers that a folder elsewhere uses, until that folder is gone
    <store>/new-<random>          being written or removed; left by a kill, and removed by the next load or rm

Crash-only: everything appears by one rename, after it was synced. A name appears after its layers.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tonnage.errors import HostError, InvalidError, NotFoundError, TonnageError, host_errors
from tonnage.host import libc, tree
from tonnage.host.descriptor import closing, opened
from tonnage.images import manifest, reference
from tonnage.images.manifest import RunConfig

if TYPE_CHECKING:  # a box reads its store, and does not load into it
    from tonnage.images.layer import LayerLimits
    from tonnage.images.source import ImageArchive, ImageSource, LayerSource

FORMAT = 1
MARKER = "tonnage-images.json"
_NEW = "new-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
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
        self._images, self._uses = path / "images", path / "uses"

    def images(self) -> list[ImageRecord]:
        """All images that can be read, sorted by name. Raises InvalidError when the folder is no store of ours."""
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
        """The image of a name, by its digest if it has one. Raises InvalidError (a bad name)."""
        wanted = reference.parse(name)
        if not wanted.digest:
            return self._record(self._images / _file_of(str(wanted)))
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
        """Lock the store, made if it is missing, and remove what a kill has left. Raises HostError, InvalidError."""
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
                for folder in (self._blobs, self._layers, self._images, self._uses):
                    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                yield

    def load(self, path: Path, name: str = "") -> list[ImageRecord]:
        """Load all images of a layout or archive, under their own names or the given one. Idempotent.

        Raises InvalidError, NotFoundError, UnsupportedError (what the image is), HostError.
        """
        from tonnage.images import source

        given = str(reference.parse(name)) if name else ""
        with source.opened(path) as archive:
            found = archive.images(manifest.machine())
            if given and len(found) != 1:
                raise InvalidError(f"{path}: it has {len(found)} images: load it without --name")
            with self._changing():
                records = []
                try:
                    for image in found:
                        records += self._load(archive, image, (given,) if given else image.names)
                except TonnageError:
                    self._collect()  # layers of an image that is refused
                    raise
                self._collect()
        return records

    def _load(self, archive: ImageArchive, image: ImageSource, names: Sequence[str]) -> list[ImageRecord]:
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
            ImageRecord(name, image.digest, platform, chains, size, run, is_saved=image.is_saved) for name in names
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
        from tonnage.images.layer import LayerLimits, LayerUnpacker
        from tonnage.images.stream import Unpacked
        from tonnage.images.tar_reader import TarReader

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
                counts = LayerUnpacker(root, lowers, what, replace(limits, size=most)).unpack(TarReader(content, what))
            while content.read(1 << 20):
                pass
            blob.finish()
            if content.digest() != layer.diff_id:
                raise InvalidError(f"{what}: unpacked it has digest {content.digest()}, want {layer.diff_id}: damaged")
            record = LayerRecord(layer.diff_id, counts.size, counts.entries, counts.dropped)
            (new / "layer.json").write_bytes(msgspec.json.encode(record))
            with opened(new, _FOLDER) as fd:
                libc.syncfs(fd)
            os.rename(new, self._layers / chain)
            _sync(self._layers)
        except (TonnageError, OSError) as failure:
            _remove(new)
            if isinstance(failure, OSError):
                raise _refusal(what, failure) from failure
            raise

    def remove(self, name: str) -> ImageRecord:
        """Remove a name, and the layers that nothing uses any more. Raises NotFoundError, InvalidError, HostError."""
        wanted = str(reference.parse(name))
        with self._changing():
            record = self._record(self._images / _file_of(wanted))
            if record is None:
                raise NotFoundError(f"image {wanted}: it is not in store {self.path}; see `tonnage images list`")
            os.unlink(self._images / _file_of(wanted))
            _sync(self._images)
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
            with suppress(msgspec.MsgspecError, OSError):
                use = msgspec.json.decode(path.read_bytes(), type=_Use)
                if os.path.isdir(use.folder):
                    for chain in use.layers[-1:]:
                        counts[chain] = counts.get(chain, 0) + 1
        return counts

    def use(self, name: str, folder: str) -> ImageRecord | None:
        """Find an image and protect its layers until folder is gone; None if it is not in the store. Idempotent.

        folder: exists, and is named by an absolute path. Raises InvalidError, HostError.
        """
        if not is_store(self.path):
            return None
        with host_errors(f"image store {self.path} cannot be used"), self._beginning() as writable:
            record = self.find(name)
            if record is not None and writable:
                path = self._uses / _file_of(folder)
                new = path.with_suffix(".new")
                new.write_bytes(msgspec.json.encode(_Use(folder, record.layers)))
                os.rename(new, path)  # not synced: a power cut ends the use
            return record

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
        _sync(path.parent)


def _chain(below: str, diff_id: str) -> str:
    """Chain id of a layer (OCI image-spec): it names the layer together with all below it."""
    return hashlib.sha256(f"sha256:{below} {diff_id}".encode()).hexdigest() if below else diff_id.partition(":")[2]


def _file_of(name: str) -> str:
    return f"{hashlib.sha256(os.fsencode(name)).hexdigest()}.json"


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _files(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_file()]


def _sync(folder: Path) -> None:
    with opened(folder, _FOLDER) as fd:
        os.fsync(fd)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        tree.remove(path)
    else:
        path.unlink(missing_ok=True)


def _refusal(what: str, failure: OSError) -> TonnageError:
    if failure.errno in (errno.EPERM, errno.EACCES) and os.geteuid() != 0:
        return HostError(f"{what}: cannot be unpacked: {failure.strerror}; run it as root (sudo)")
    return HostError(f"{what}: cannot be unpacked: {failure.strerror or failure}")
