"""A pull: what a store lacks of a remote image is downloaded into a layout, and loaded from there. Blocking; root.

Layers that the store has are protected before the first download. A pull that was killed continues with the layers that
it had downloaded whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from tonnage.base.errors import ExhaustedError, host_errors
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.content.access import pause
from tonnage.storage.images.manifest import BlobDescriptor
from tonnage.storage.images.store import ImageRecord, ImageStore
from tonnage.storage.registry.remote import ImageClient, RemoteImage

HIGH, LOW = 0.85, 0.70
"""Parts of the store's disk: above the first, unused images are evicted down to the second (as the kubelet does)."""
_OTHER_PULL = 0.5  # seconds between looks at the lock of another process


@dataclass(frozen=True)
class PullResult:
    """A pull that ended. missing: number of layers that the store did not have; None: it had the image."""

    record: ImageRecord
    missing: int | None = None


def pull(client: ImageClient, remote: RemoteImage, store: ImageStore) -> PullResult:
    """Pull an image into a store. Idempotent.

    Raises: InvalidError, UnsupportedError, PreconditionError (what the image is), UnavailableError, ExhaustedError (the
    store's disk is full), StoppedError, HostError.
    """
    found = store.find(remote.name)
    if found is not None and found.digest == remote.digest:
        return PullResult(found)
    trim(store)
    with store.pulling(remote.digest, partial(pause, client.progress, _OTHER_PULL)) as folder:
        layers = [remote.manifest.layers[at] for at in store.missing(remote.config.rootfs.diff_ids, str(folder))]
        with host_errors(f"image {remote.name}: cannot be downloaded to {folder}"):
            _write_layout(folder, remote)
            _download(client, folder, layers, store)
        (record,) = store.load(folder, remote.name, is_pulled=True)
    return PullResult(record, len(layers))


def trim(store: ImageStore) -> None:
    """Evict unused images where the store's disk is nearly full. Raises: HostError."""
    evict(store, lambda: _used(store) > HIGH, lambda: _used(store) > LOW)


def evict(store: ImageStore, begins: Callable[[], bool], goes_on: Callable[[], bool]) -> list[ImageRecord]:
    """Evict unused images of a store that begins to need it, for as long as it goes on to. Raises: HostError."""
    return store.evict(goes_on, now=time.time()) if begins() else []


def _used(store: ImageStore) -> float:
    """The part of the store's disk that is used, as df shows it."""
    try:
        disk = os.statvfs(store.path)
    except FileNotFoundError:
        return 0.0
    used = disk.f_blocks - disk.f_bfree
    return used / max(used + disk.f_bavail, 1)


def _free(store: ImageStore) -> int:
    disk = os.statvfs(store.path)
    return disk.f_bavail * disk.f_frsize


def _write_layout(folder: Path, remote: RemoteImage) -> None:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    for digest, data in remote.documents.items():
        (blobs / digest.partition(":")[2]).write_bytes(data)
    size = len(remote.documents[remote.digest])
    manifests = [{"mediaType": remote.media_type, "digest": remote.digest, "size": size}]
    (folder / "oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_bytes(msgspec.json.encode({"schemaVersion": 2, "manifests": manifests}))


def _download(client: ImageClient, folder: Path, layers: list[BlobDescriptor], store: ImageStore) -> None:
    blobs = folder / "blobs" / "sha256"
    wanted = {layer.digest: layer for layer in layers if not (blobs / layer.hex).exists()}
    client.progress.total = size = sum(layer.size for layer in wanted.values())
    evict(store, lambda: _free(store) < size, lambda: _free(store) < size)
    if (free := _free(store)) < size:
        raise ExhaustedError(
            f"image {client.image}: it needs {from_bytes(size)}, image store {store.path} has {from_bytes(free)} free:"
            " remove images with `tonnage images rm`, or free the disk"
        )
    for layer in wanted.values():
        part = blobs / f"{layer.hex}.part"
        client.download(layer, part)
        os.rename(part, blobs / layer.hex)
