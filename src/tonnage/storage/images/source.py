"""Sources of images: an OCI layout in a folder or a tar archive, and the archive of `docker save`. Blocking; read-only.

An archive is indexed by one pass over its headers, and its blobs are read where they are.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from tonnage.base.errors import HostError, InvalidError, NotFoundError, UnsupportedError
from tonnage.host import nofollow
from tonnage.host.descriptor import closing
from tonnage.storage.images import manifest, reference
from tonnage.storage.images.manifest import BlobDescriptor, ImageIndex, Platform
from tonnage.storage.images.stream import Blob, read_blob
from tonnage.storage.images.tar_reader import TarReader, may_be_tar

_MAX_MEMBERS = 100_000
_MAX_NAMES = 32 << 20  # bytes
_MAX_IMAGES = 1000
_MAX_JSON = 8 << 20
_REF_NAME, _FULL_NAME = "org.opencontainers.image.ref.name", "io.containerd.image.name"


class _Layout(msgspec.Struct, rename="camel"):
    image_layout_version: str


class _Saved(msgspec.Struct, rename="pascal"):
    """An entry of manifest.json."""

    config: str
    layers: list[str]
    repo_tags: list[str] | None = None


@dataclass(frozen=True)
class LayerSource:
    """One layer. diff_id: digest of its unpacked content; size and digest: of the blob, None and "" if not known.

    is_artifact: the diff_id only names it. file: where it is one file, its path, else ().
    """

    path: str
    diff_id: str
    compression: str = ""
    size: int | None = None
    digest: str = ""
    is_artifact: bool = False
    file: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageSource:
    """One image of a source. digest: of its manifest, or of its configuration where it has no manifest."""

    names: tuple[str, ...]
    digest: str
    config: manifest.ImageConfig
    layers: tuple[LayerSource, ...]
    documents: Mapping[str, bytes]
    """Manifest and configuration by digest."""
    is_saved: bool = False


class _Files(Protocol):
    def has(self, path: str) -> bool: ...
    def open(self, path: str) -> BinaryIO: ...


class _Folder:
    """Files of a layout in a folder. Symlinks in it are not followed."""

    def __init__(self, root: int) -> None:
        self._root = root

    def has(self, path: str) -> bool:
        try:
            os.close(nofollow.open_beneath(self._root, os.fsencode(path)))
        except OSError:
            return False
        return True

    def open(self, path: str) -> BinaryIO:
        try:
            fd = nofollow.open_beneath(self._root, os.fsencode(path), os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            raise NotFoundError(f"{path} is missing") from None
        except OSError as failure:
            raise InvalidError(f"{path} cannot be opened: {failure.strerror}") from failure
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InvalidError(f"{path} is not a file")
        return os.fdopen(fd, "rb", buffering=0)


class _Part(io.RawIOBase):
    """A member of an archive."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self._fd, self._at, self._end = fd, offset, offset + size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        left = self._end - self._at
        data = os.pread(self._fd, left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data


class _Archive:
    """Files of a tar archive, by their offsets."""

    def __init__(self, file: BinaryIO, what: str) -> None:
        self._file = file
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        held = 0
        if not may_be_tar(os.pread(file.fileno(), 512, 0)):
            raise InvalidError(f"{what}: it is no tar archive: want what `docker save` writes, or an OCI archive")
        reader = TarReader(file, what, seek=file.seek)
        for entry in reader:
            name = os.path.normpath(os.fsdecode(entry.name))
            if entry.kind == "file" and entry.segments is None:
                self._members[name] = reader.position, entry.stored
            elif entry.kind in ("link", "symlink"):
                base = os.path.dirname(name) if entry.kind == "symlink" else ""
                self._links[name] = os.path.normpath(os.path.join(base, os.fsdecode(entry.link)))
            held += len(name) + len(entry.link)
            if len(self._members) + len(self._links) > _MAX_MEMBERS or held > _MAX_NAMES:
                raise InvalidError(f"{what}: more than {_MAX_MEMBERS} files in the archive")

    def _real(self, path: str) -> str:
        name = os.path.normpath(path)
        for _ in range(8):
            name = self._links.get(name, name)
        return name

    def has(self, path: str) -> bool:
        return self._real(path) in self._members

    def open(self, path: str) -> BinaryIO:
        found = self._members.get(self._real(path))
        if found is None:
            raise NotFoundError(f"{path[:120]} is missing")
        return _Part(self._file.fileno(), *found)  # type: ignore[return-value]  # a RawIOBase is enough


@dataclass(frozen=True)
class ImageArchive:
    """An open source. what: names it in messages."""

    what: str
    stem: str
    files: _Files

    def images(self, wanted: Platform) -> list[ImageSource]:
        """Its images for a platform. Raises: InvalidError, NotFoundError, UnsupportedError."""
        if self.files.has("index.json") and self.files.has("oci-layout"):
            return self._of_layout(wanted)
        if self.files.has("manifest.json"):
            return self._of_docker()
        raise InvalidError(
            f"{self.what}: neither an OCI layout (oci-layout, index.json) nor an archive of `docker save` "
            "(manifest.json)"
        )

    def open(self, layer: LayerSource, what: str) -> Blob:
        """The blob of a layer. Raises: NotFoundError, InvalidError."""
        return Blob(self._open(layer.path), what, size=layer.size, digest=layer.digest)

    def _open(self, path: str) -> BinaryIO:
        try:
            return self.files.open(path)
        except (NotFoundError, InvalidError) as failure:
            raise type(failure)(f"{self.what}: {failure}: the image is not whole; save it again") from failure

    def _json(self, path: str) -> bytes:
        return read_blob(self._open(path), f"{self.what}: {path}", most=_MAX_JSON)

    def _blob(self, found: BlobDescriptor, most: int) -> bytes:
        manifest.check_descriptor(found, self.what, most)
        path = f"blobs/sha256/{found.hex}"
        return read_blob(self._open(path), f"{self.what}: {path}", most=most, size=found.size, digest=found.digest)

    def _of_layout(self, wanted: Platform) -> list[ImageSource]:
        layout = manifest.decode(self._json("oci-layout"), _Layout, f"{self.what}: oci-layout")
        if layout.image_layout_version != "1.0.0":
            raise UnsupportedError(f"{self.what}: layout version {layout.image_layout_version[:20]!r}, want 1.0.0")
        index = manifest.decode(self._json("index.json"), ImageIndex, f"{self.what}: index.json")
        groups: dict[tuple[str, ...], list[BlobDescriptor]] = {}
        for found in index.manifests:
            groups.setdefault(self._names(found), []).append(found)
        if len(groups) > _MAX_IMAGES:
            raise InvalidError(f"{self.what}: more than {_MAX_IMAGES} images")
        return [self._image(names, self._resolve(found, wanted, 1)) for names, found in groups.items()]

    def _names(self, found: BlobDescriptor) -> tuple[str, ...]:
        notes = found.annotations or {}
        name = notes.get(_FULL_NAME) or notes.get(_REF_NAME, "")
        if name and "/" not in name and ":" not in name:
            name = f"{self.stem}:{name}"
        return (str(reference.parse(name or self.stem)),)

    def _resolve(self, found: list[BlobDescriptor], wanted: Platform, depth: int) -> BlobDescriptor:
        """Go down through indexes to the manifest of a platform."""
        chosen = found[0] if len(found) == 1 else manifest.choose(found, wanted, self.what)
        if chosen.media_type not in manifest.INDEXES:
            return chosen
        if depth > manifest.MAX_DEPTH:
            raise InvalidError(f"{self.what}: indexes are nested deeper than {manifest.MAX_DEPTH} levels")
        data = self._blob(chosen, manifest.MAX_MANIFEST)
        inner = manifest.decode(data, ImageIndex, f"{self.what}: {chosen.digest}").manifests
        return self._resolve([manifest.choose(inner, wanted, self.what)], wanted, depth + 1)

    def _image(self, names: tuple[str, ...], found: BlobDescriptor) -> ImageSource:
        if found.media_type not in manifest.MANIFESTS:
            raise UnsupportedError(f"{self.what}: media type {found.media_type[:80]!r} is not an image")
        data = self._blob(found, manifest.MAX_MANIFEST)
        what = f"{self.what}: {names[0]}"
        image = manifest.manifest(data, what)
        documents = {found.digest: data}
        if image.is_artifact:
            config = manifest.artifact_config(image, what)
        else:
            documents[image.config.digest] = raw = self._blob(image.config, manifest.MAX_CONFIG)
            config = manifest.config(raw, what, len(image.layers))
        layers = tuple(
            _layer(layer, diff, what, is_artifact=image.is_artifact)
            for layer, diff in zip(image.layers, config.rootfs.diff_ids, strict=True)
        )
        return ImageSource(names, found.digest, config, layers, documents)

    def _of_docker(self) -> list[ImageSource]:
        path = f"{self.what}: manifest.json"
        images = manifest.decode(self._json("manifest.json"), list[_Saved], path)
        if len(images) > _MAX_IMAGES:
            raise InvalidError(f"{self.what}: more than {_MAX_IMAGES} images")
        return [self._saved(image) for image in images]

    def _saved(self, image: _Saved) -> ImageSource:
        names = tuple(str(reference.parse(tag)) for tag in image.repo_tags or [self.stem])
        what = f"{self.what}: {names[0]}"
        if len(image.layers) > manifest.MAX_LAYERS:
            raise InvalidError(f"{what}: {len(image.layers)} layers, at most {manifest.MAX_LAYERS} are unpacked")
        blob = Blob(self._open(image.config), f"{what}: config", size=None)
        raw = blob.read(manifest.MAX_CONFIG + 1)
        if len(raw) > manifest.MAX_CONFIG:
            raise InvalidError(f"{what}: the config has more than {manifest.MAX_CONFIG} bytes")
        digest = blob.finish()
        config = manifest.config(raw, what, len(image.layers))
        layers = tuple(
            LayerSource(path, diff, self._compression(path))
            for path, diff in zip(image.layers, config.rootfs.diff_ids, strict=True)
        )
        return ImageSource(names, digest, config, layers, {digest: raw}, is_saved=True)

    def _compression(self, path: str) -> str:
        """manifest.json names no media type: gzip and zstd are known by their first bytes."""
        start = self._open(path).read(4)
        return "gzip" if start[:2] == b"\x1f\x8b" else "zstd" if start == b"\x28\xb5\x2f\xfd" else ""


def _layer(found: BlobDescriptor, diff_id: str, what: str, *, is_artifact: bool) -> LayerSource:
    file = manifest.file_name(found, what) if is_artifact else ()
    compression = "" if file else manifest.compression(found.media_type, what)
    return LayerSource(
        f"blobs/sha256/{found.hex}", diff_id, compression, found.size, found.digest, is_artifact=is_artifact, file=file
    )


@contextmanager
def opened(path: Path) -> Iterator[ImageArchive]:
    """Open a layout or an archive. Raises: InvalidError, NotFoundError, UnsupportedError, HostError."""
    what = str(path)
    stem = "".join(c if c.isalnum() or c in "._-" else "-" for c in _stem(path).lower()).strip("._-") or "image"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFoundError(f"{what}: there is no such file or folder") from None
    except OSError as failure:
        raise HostError(f"{what} cannot be opened: {failure.strerror}") from failure
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        with closing(fd):
            yield ImageArchive(what, stem, _Folder(fd))
        return
    with os.fdopen(fd, "rb", buffering=0) as file:
        if not stat.S_ISREG(mode):
            raise InvalidError(f"{what}: neither a file nor a folder")
        _reject_compressed(os.pread(fd, 4, 0), what)
        yield ImageArchive(what, stem, _Archive(file, what))


def _stem(path: Path) -> str:
    name = path.resolve().name
    return name[: -len(".tar")] if name.endswith(".tar") else name


def _reject_compressed(start: bytes, what: str) -> None:
    for magic, program in ((b"\x1f\x8b", "gunzip"), (b"\x28\xb5\x2f\xfd", "unzstd"), (b"BZh", "bunzip2")):
        if start.startswith(magic):
            raise UnsupportedError(f"{what}: the whole archive is compressed: unpack it with {program} first")
