"""An image where it is now, before it is in a store: its manifest for one platform, found through indexes. Blocking.

Used by all clients that read manifests by tag or digest.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tonnage.base.errors import InvalidError, NotFoundError
from tonnage.storage.content.access import Progress
from tonnage.storage.images import manifest
from tonnage.storage.images.manifest import BlobDescriptor, ImageConfig, ImageIndex, ImageManifest, Platform
from tonnage.storage.images.reference import ImageReference
from tonnage.storage.images.stream import Blob


@dataclass(frozen=True)
class RemoteImage:
    """An image elsewhere. name: in the store. digest: of its manifest. documents: manifest and configuration."""

    name: str
    digest: str
    manifest: ImageManifest
    config: ImageConfig
    documents: Mapping[str, bytes]
    media_type: str


class ImageClient(Protocol):
    """Reads one image. Blocking; a stop of its progress ends its work with StoppedError."""

    @property
    def image(self) -> ImageReference:
        """Its name."""

    @property
    def progress(self) -> Progress:
        """How far the download is."""

    def manifest(self, at: str) -> tuple[str, bytes]:
        """Media type ("" if it is not known) and content of a manifest or index, by tag or digest."""

    def document(self, blob: BlobDescriptor) -> bytes:
        """A small blob, checked against digest and size."""

    def resolve(self, platform: Platform) -> RemoteImage:
        """Find the image for a platform."""

    def download(self, blob: BlobDescriptor, target: Path) -> None:
        """Copy a blob into a new file, checked against digest and size, and synced."""


class ImageOrigin(Protocol):
    """A place that images are pulled from."""

    @property
    def name(self) -> str:
        """A word for metrics."""

    def allows(self, image: ImageReference) -> bool:
        """Whether it may be asked for an image."""

    def login(self, image: ImageReference, secrets: Mapping[str, str]) -> Hashable:
        """What a pull secret has for it. Raises: InvalidError."""

    def client(self, image: ImageReference, found: Any) -> ImageClient:
        """What reads an image. found: of login()."""


def resolve(client: ImageClient, platform: Platform) -> RemoteImage:
    """Find an image for a platform.

    Raises: InvalidError, UnsupportedError, NotFoundError, UnavailableError.
    """
    image, what = client.image, f"image {client.image}"
    at, known = image.digest or image.tag, ""
    for _ in range(manifest.MAX_DEPTH + 1):
        media_type, data = client.manifest(at)
        if media_type not in manifest.MANIFESTS | manifest.INDEXES:
            media_type = manifest.decode(data, _MediaType, what).media_type or known or media_type
        if media_type not in manifest.INDEXES:
            return _image(client, media_type, data, platform)
        found = manifest.choose(manifest.decode(data, ImageIndex, what).manifests, platform, what)
        at, known = manifest.check_descriptor(found, what, manifest.MAX_MANIFEST).digest, found.media_type
    raise InvalidError(f"{what}: indexes are nested deeper than {manifest.MAX_DEPTH} levels")


def _image(client: ImageClient, media_type: str, data: bytes, platform: Platform) -> RemoteImage:
    what = f"image {client.image}"
    found = manifest.manifest(data, what)
    digest = Blob(BytesIO(data), what).finish()
    documents = {digest: data}
    if found.is_artifact:
        config = manifest.artifact_config(found, what)
    else:
        documents[found.config.digest] = raw = client.document(found.config)
        config = manifest.config(raw, what, len(found.layers))
    if (config.os, config.architecture) != (platform.os, platform.architecture):
        raise NotFoundError(
            f"{what}: it is for {config.os[:20]}/{config.architecture[:20]}, wanted"
            f" {platform.os}/{platform.architecture}"
        )
    name = _name(client.image, digest, platform)
    return RemoteImage(name, digest, found, config, documents, found.media_type or media_type)


def _name(image: ImageReference, digest: str, platform: Platform) -> str:
    """In a store a tag is of this machine's platform."""
    machine = manifest.machine()
    if image.digest:
        return f"{image.repository}@{image.digest}"
    is_ours = (platform.os, platform.architecture) == (machine.os, machine.architecture)
    return str(image) if is_ours else f"{image.repository}@{digest}"


class _MediaType(msgspec.Struct, rename="camel"):
    media_type: str = ""
