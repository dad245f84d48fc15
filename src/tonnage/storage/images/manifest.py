"""Manifests, indexes and configurations of images (OCI image-spec, Docker schema 2), validated against limits. Pure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from tonnage.base.errors import InvalidError, NotFoundError, UnsupportedError
from tonnage.storage.images import reference

MAX_MANIFEST = 4 << 20  # bytes
MAX_CONFIG = 8 << 20
MAX_LAYERS = 128
MAX_DEPTH = 4
"""Levels of indexes in indexes."""
_MAX_SIZE = 1 << 40  # bytes of one blob
_MAX_TEXTS = 1000  # variables, arguments
_MAX_TEXT = 128 << 10  # bytes; the kernel takes no longer argument
INDEXES = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
MANIFESTS = frozenset(
    {"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}
)
_CONFIGS = frozenset({"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"})
_TITLE = "org.opencontainers.image.title"
_MAX_NAME = 255  # bytes, of the kernel
TAR = "application/vnd.oci.image.layer.v1.tar"
_OF_LAYER = {
    "application/vnd.oci.image.layer.v1.tar": "",
    "application/vnd.oci.image.layer.nondistributable.v1.tar": "",
    "application/vnd.docker.image.rootfs.diff.tar": "",
    "application/vnd.docker.image.rootfs.foreign.diff.tar": "",
}
_MACHINES = {
    "x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "riscv64": "riscv64", "ppc64le": "ppc64le",
    "s390x": "s390x",
}  # fmt: skip

T = TypeVar("T")


class Platform(msgspec.Struct, frozen=True):
    """What an image runs on."""

    architecture: str = ""
    os: str = ""
    variant: str | None = None


class BlobDescriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A blob by its digest."""

    media_type: str = ""
    digest: str = ""
    size: int = -1
    platform: Platform | None = None
    annotations: dict[str, str] | None = None

    @property
    def hex(self) -> str:
        """The digest without its algorithm."""
        return self.digest.partition(":")[2]


class ImageIndex(msgspec.Struct, frozen=True, rename="camel"):
    """A list of manifests."""

    manifests: list[BlobDescriptor]
    schema_version: int = 2
    media_type: str = ""


class ImageManifest(msgspec.Struct, frozen=True, rename="camel"):
    """One image: its configuration and layers, the lowest first."""

    config: BlobDescriptor
    layers: list[BlobDescriptor]
    schema_version: int = 2
    media_type: str = ""

    @property
    def is_artifact(self) -> bool:
        """Whether it is no image but files with names of their own (OCI image-spec, guidelines for artifacts)."""
        return self.config.media_type not in _CONFIGS


class RunConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """How a container of the image starts."""

    user: str | None = None
    env: list[str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    working_dir: str | None = None
    stop_signal: str | None = None


class RootFs(msgspec.Struct, frozen=True):
    """Digests of the unpacked layers, the lowest first."""

    type: str
    diff_ids: list[str]


class ImageConfig(msgspec.Struct, frozen=True):
    """The configuration of an image, with only the fields that we read."""

    architecture: str
    os: str
    rootfs: RootFs
    config: RunConfig | None = None
    variant: str | None = None


def decode(data: bytes, kind: type[T], what: str) -> T:
    """Decode JSON. Raises: InvalidError with the field at fault."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as failure:
        raise InvalidError(f"{what}: cannot be read: {failure}") from failure


def check_descriptor(found: BlobDescriptor, what: str, most: int = _MAX_SIZE) -> BlobDescriptor:
    """Check digest and size. Raises: InvalidError, UnsupportedError."""
    if not reference.is_digest(found.digest):
        if found.digest.startswith("sha512:"):
            raise UnsupportedError(f"{what}: digest {found.digest[:20]}... is not sha256, the only one that is read")
        raise InvalidError(f"{what}: digest {found.digest[:80]!r} is not sha256 and 64 hexadecimal digits")
    if not 0 <= found.size <= most:
        raise InvalidError(f"{what}: size {found.size} is not from 0 to {most} bytes")
    return found


def manifest(data: bytes, what: str) -> ImageManifest:
    """Decode and check an image manifest. Raises: InvalidError, UnsupportedError."""
    found = decode(data, ImageManifest, what)
    if found.schema_version != 2:
        raise UnsupportedError(f"{what}: schemaVersion {found.schema_version} is not read: save it with a newer tool")
    if found.media_type and found.media_type not in MANIFESTS:
        raise UnsupportedError(f"{what}: media type {found.media_type[:80]!r} is not an image")
    check_descriptor(found.config, f"{what}: config", MAX_CONFIG)
    if len(found.layers) > MAX_LAYERS:
        raise InvalidError(f"{what}: {len(found.layers)} layers, at most {MAX_LAYERS} are unpacked")
    for number, layer in enumerate(found.layers, 1):
        check_descriptor(layer, f"{what}: layer {number}")
        if not found.is_artifact or not file_name(layer, f"{what}: layer {number}"):
            compression(layer.media_type, f"{what}: layer {number}")
    return found


def file_name(layer: BlobDescriptor, what: str) -> tuple[str, ...]:
    """The path of an artifact's layer that is one file; () for one that is a tar archive. Raises: InvalidError."""
    title = (layer.annotations or {}).get(_TITLE, "")
    if not title or layer.media_type.partition("+")[0].removesuffix(".gzip").removesuffix(".zstd") in _OF_LAYER:
        return ()
    parts = tuple(title.split("/"))
    if "\0" in title or any(p in ("", ".", "..") or len(os.fsencode(p)) > _MAX_NAME for p in parts) or len(parts) > 20:
        raise InvalidError(f"{what}: title {title[:80]!r} is no relative path of a file")
    return parts


def artifact_config(found: ImageManifest, what: str) -> ImageConfig:
    """A configuration for an artifact, which has none: for this machine, with names of its layers as their diff_ids.

    No layer of an image has such a diff_id, so none is taken for one of these.
    """
    texts = ("\0".join(("artifact", one.media_type, one.digest, *file_name(one, what))) for one in found.layers)
    diffs = [f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" for text in texts]
    here = machine()
    return ImageConfig(here.architecture, here.os, RootFs("layers", diffs))


def compression(media_type: str, what: str) -> str:
    """Compression of a layer: "", gzip or zstd. Raises: UnsupportedError."""
    plain, _, word = media_type.partition("+")
    if plain.endswith((".tar.gzip", ".tar.zstd")):
        plain, _, word = plain.rpartition(".")
    if plain in _OF_LAYER and word in ("", "gzip", "zstd"):
        return word
    if media_type.endswith("+encrypted"):
        raise UnsupportedError(f"{what}: the layer is encrypted: it is not unpacked")
    raise UnsupportedError(f"{what}: media type {media_type[:80]!r} is not a layer that is unpacked")


def config(data: bytes, what: str, layers: int) -> ImageConfig:
    """Decode and check a configuration. Raises: InvalidError, UnsupportedError."""
    found = decode(data, ImageConfig, what)
    if found.rootfs.type != "layers":
        raise UnsupportedError(f"{what}: rootfs type {found.rootfs.type[:40]!r} is not known, want layers")
    if len(found.rootfs.diff_ids) != layers:
        raise InvalidError(f"{what}: {len(found.rootfs.diff_ids)} diff_ids for {layers} layers")
    for diff in found.rootfs.diff_ids:
        if not reference.is_digest(diff):
            raise InvalidError(f"{what}: diff_id {diff[:80]!r} is not sha256 and 64 hexadecimal digits")
    _check_run(found.config or RunConfig(), what)
    return found


def _check_run(run: RunConfig, what: str) -> None:
    for name, texts in (("Env", run.env), ("Entrypoint", run.entrypoint), ("Cmd", run.cmd)):
        if len(texts or ()) > _MAX_TEXTS:
            raise InvalidError(f"{what}: {name} has {len(texts or ())} entries, at most {_MAX_TEXTS} are taken")
        for text in texts or ():
            _check_text(text, f"{what}: {name}")
    for field in (run.user, run.working_dir, run.stop_signal):
        _check_text(field or "", what)
    for variable in run.env or ():
        if "=" not in variable[1:]:
            raise InvalidError(f"{what}: Env has {variable[:40]!r}, want NAME=value")
    if run.working_dir and (not run.working_dir.startswith("/") or ".." in run.working_dir.split("/")):
        raise InvalidError(f"{what}: WorkingDir {run.working_dir[:80]!r}: want an absolute path without '..'")


def _check_text(text: str, what: str) -> None:
    if "\0" in text or len(text.encode(errors="surrogatepass")) > _MAX_TEXT:
        raise InvalidError(f"{what}: a text has a NUL or is longer than {_MAX_TEXT} bytes")


def machine() -> Platform:
    """The platform of this machine."""
    name = os.uname().machine
    return Platform(_MACHINES.get(name, name), "linux")


def choose(found: Sequence[BlobDescriptor], wanted: Platform, what: str) -> BlobDescriptor:
    """The manifest for a platform; one without any platform is taken when it is the only one. Raises: NotFoundError."""
    fits = [d for d in found if d.platform is not None and _fits(d.platform, wanted)]
    if fits:
        return fits[0]
    if len(found) == 1 and found[0].platform is None:
        return found[0]
    there = sorted({f"{d.platform.os}/{d.platform.architecture}" for d in found if d.platform} - {"unknown/unknown"})
    raise NotFoundError(
        f"{what}: no manifest for {wanted.os}/{wanted.architecture}: it has {', '.join(there)[:200] or 'none'}; "
        "save the image for this platform"
    )


def _fits(platform: Platform, wanted: Platform) -> bool:
    return (platform.os, platform.architecture) == (wanted.os, wanted.architecture)
