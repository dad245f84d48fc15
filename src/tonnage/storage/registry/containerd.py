"""Images of the node's containerd, read from its content store by its socket. Blocking.

Only reads: what is copied into a store is checked there and outlives the image. containerd's snapshots are not used,
since it may remove them below a volume. Layers are there only as they were pulled, compressed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, UnavailableError, host_errors
from tonnage.storage.content.access import Progress
from tonnage.storage.images import manifest
from tonnage.storage.images.manifest import BlobDescriptor, Platform
from tonnage.storage.images.reference import ImageReference, is_digest
from tonnage.storage.registry import remote
from tonnage.storage.registry._proto import content_pb2, images_pb2
from tonnage.storage.registry._proto.content_grpc import ContentStub
from tonnage.storage.registry._proto.images_grpc import ImagesStub
from tonnage.storage.registry.remote import RemoteImage

NAMESPACE = "k8s.io"
"""Of the kubelet's images."""
_METADATA = {"containerd-namespace": NAMESPACE}
_SECONDS = 30.0
"""Within which the next answer must come."""


@dataclass(frozen=True)
class ContainerdImages:
    """The images of a containerd. socket: its path."""

    socket: Path
    name: ClassVar[str] = "containerd"

    def allows(self, image: ImageReference) -> bool:
        """Any: what is there may be shown."""
        return True

    def login(self, image: ImageReference, secrets: Mapping[str, str]) -> Hashable:
        """Nothing: pull secrets are for registries."""
        return ()

    def client(self, image: ImageReference, found: Hashable) -> ContainerdClient:
        """What reads an image."""
        return ContainerdClient(image, self.socket, Progress(f"containerd, {image}"))


@dataclass
class ContainerdClient:
    """Reads one image."""

    image: ImageReference
    socket: Path
    progress: Progress

    def resolve(self, platform: Platform) -> RemoteImage:
        """Find the image for a platform. Raises: as remote.resolve()."""
        return remote.resolve(self, platform)

    def manifest(self, at: str) -> tuple[str, bytes]:
        """The manifest or index of a digest, or of the image. Raises: NotFoundError, UnavailableError, InvalidError."""
        if is_digest(at) and at != self.image.digest:
            return "", self._blob(at, manifest.MAX_MANIFEST)
        target = asyncio.run(self._target())
        if not is_digest(target.digest):
            raise InvalidError(f"image {self.image}: containerd names no sha256 digest for it")
        return target.media_type, self._blob(target.digest, manifest.MAX_MANIFEST)

    def document(self, blob: BlobDescriptor) -> bytes:
        """A small blob, checked."""
        return self._blob(blob.digest, manifest.MAX_CONFIG, size=blob.size)

    def _blob(self, digest: str, most: int, size: int | None = None) -> bytes:
        parts: list[bytes] = []
        self._read(digest, parts.append, most if size is None else size, is_exact=size is not None)
        return b"".join(parts)

    def download(self, blob: BlobDescriptor, target: Path) -> None:
        """Copy a layer into a new file, checked and synced.

        Raises: InvalidError, PreconditionError (containerd has it no more), UnavailableError, StoppedError, HostError.
        """

        def write(data: bytes) -> None:
            file.write(data)
            self.progress.add(len(data))

        with host_errors(f"image {self.image}: cannot be written to {target.parent}"), open(target, "wb") as file:
            try:
                self._read(blob.digest, write, blob.size, is_exact=True)
            except NotFoundError:
                raise PreconditionError(
                    f"image {self.image}: containerd has its layer {blob.digest} no more: set"
                    " discard_unpacked_layers = false in its configuration and pull the image again, or allow its"
                    " registry"
                ) from None
            file.flush()
            os.fsync(file.fileno())

    def _read(self, digest: str, write: Callable[[bytes], object], size: int, *, is_exact: bool) -> None:
        """Read a blob in pieces, and check it. size: bytes, exactly or at most."""
        what, found, count = f"image {self.image}: containerd: {digest}", hashlib.sha256(), 0

        async def stream() -> None:
            nonlocal count
            async with self._channel() as channel, ContentStub(channel).Read.open(metadata=_METADATA) as call:
                await call.send_message(content_pb2.ReadContentRequest(digest=digest), end=True)
                while (message := await asyncio.wait_for(call.recv_message(), _SECONDS)) is not None:
                    count += len(message.data)
                    if count > size:
                        raise InvalidError(f"{what}: longer than {size} bytes")
                    found.update(message.data)
                    write(message.data)

        asyncio.run(stream())
        if (is_exact and count != size) or f"sha256:{found.hexdigest()}" != digest:
            raise InvalidError(f"{what}: its content is damaged")

    async def _target(self) -> images_pb2.Target:
        image = self.image
        name = f"{image.repository}@{image.digest}" if image.digest else str(image)
        async with self._channel() as channel:
            request = images_pb2.GetImageRequest(name=name)
            found = await ImagesStub(channel).Get(request, metadata=_METADATA, timeout=_SECONDS)
        return found.image.target

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[Channel]:
        """A connection. Raises: NotFoundError for what containerd does not have, UnavailableError."""
        channel = Channel(path=str(self.socket))
        try:
            yield channel
        except GRPCError as failure:
            if failure.status is Status.NOT_FOUND:
                raise NotFoundError(f"image {self.image}: it is not in the node's containerd") from None
            raise UnavailableError(f"containerd {self.socket}: {failure.message or failure.status.name}") from failure
        except (OSError, TimeoutError, StreamTerminatedError) as failure:
            raise UnavailableError(f"containerd {self.socket}: it does not answer: {failure!r}") from failure
        finally:
            channel.close()
