"""An image is found through indexes, whose entries name the media types that a document may leave out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage.storage.content.access import Progress
from tonnage.storage.images import manifest, reference
from tonnage.storage.images.manifest import BlobDescriptor, Platform
from tonnage.storage.images.reference import ImageReference
from tonnage.storage.registry import remote
from tonnage.storage.registry.remote import RemoteImage
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

OCI = "application/vnd.oci.image"
LAYER = LayerTar().add("a", b"one").data()


@dataclass
class Blobs:
    """Knows documents by digest and the first by its tag, without media types."""

    blobs: dict[str, bytes]
    first: str
    image: ImageReference = field(default_factory=lambda: reference.parse("app:1"))
    progress: Progress = field(default_factory=lambda: Progress("x"))

    def manifest(self, at: str) -> tuple[str, bytes]:
        return "", self.blobs[self.first if at == "1" else at]

    def document(self, blob: BlobDescriptor) -> bytes:
        return self.blobs[blob.digest]

    def resolve(self, platform: Platform) -> RemoteImage:
        return remote.resolve(self, platform)

    def download(self, blob: BlobDescriptor, target: Path) -> None:
        raise AssertionError(blob)


def test_the_media_type_is_that_of_the_entry_and_what_lacks_one_is_rejected() -> None:
    layout = made.layout([LAYER])
    blobs = {made.digest(data): data for path, data in layout.items() if path.startswith("blobs/")}
    (digest,) = [digest for digest, data in blobs.items() if b"schemaVersion" in data]
    plain = json.loads(blobs[digest])
    del plain["mediaType"]
    data = json.dumps(plain).encode()
    entry = {"mediaType": f"{OCI}.manifest.v1+json", "digest": made.digest(data), "size": len(data)}
    index = json.dumps({"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [entry]}).encode()
    blobs |= {made.digest(data): data, made.digest(index): index}
    found = Blobs(blobs, made.digest(index)).resolve(manifest.machine())
    assert (found.digest, found.media_type) == (made.digest(data), f"{OCI}.manifest.v1+json")
    assert found.name == "docker.io/library/app:1"
    deep = Blobs(blobs, made.digest(index))
    for _ in range(manifest.MAX_DEPTH):
        inner = {"mediaType": f"{OCI}.index.v1+json", "digest": deep.first, "size": len(blobs[deep.first])}
        data = json.dumps({"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [inner]}).encode()
        deep.first = made.digest(data)
        blobs[deep.first] = data
    with pytest.raises(InvalidError, match="nested deeper than 4 levels"):
        deep.resolve(manifest.machine())
