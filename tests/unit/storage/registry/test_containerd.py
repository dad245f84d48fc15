"""Images of a real containerd: copied, checked, and there after it has removed them; and what it may answer instead."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream
from tests.programs import found

from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, UnavailableError
from tonnage.storage.content.access import StoppedError
from tonnage.storage.images import manifest, reference
from tonnage.storage.images.store import ImageStore
from tonnage.storage.registry._proto import content_pb2, images_pb2
from tonnage.storage.registry.containerd import ContainerdClient, ContainerdImages
from tonnage.storage.registry.pull import pull
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar
from tonnage_box.testing.wait import wait_until_served

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are unpacked with their owners, which needs root")
NAME = "registry.example/app:1"
LAYER = LayerTar().add("a", b"one" * 100_000).data()
HERE = manifest.machine()


def client(socket: Path, name: str = NAME) -> ContainerdClient:
    images = ContainerdImages(socket)
    image = reference.parse(name)
    assert images.allows(image)
    return images.client(image, images.login(image, {"other": "secret"}))


def pulled(socket: Path, store: ImageStore, name: str = NAME) -> bytes:
    """The content of the image's file, in a store."""
    found = client(socket, name)
    record = pull(found, found.resolve(HERE), store).record
    return (store.layer(record.layers[0]) / "a").read_bytes()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs ctr against a containerd with the image; its socket is below tmp_path."""
    containerd, ctr = str(found("containerd")), str(found("ctr"))
    socket, settings = tmp_path / "c.sock", tmp_path / "containerd.toml"
    off = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
    settings.write_text(
        f"version = 2\nroot = '{tmp_path}/root'\nstate = '{tmp_path}/state'\ndisabled_plugins = {off}\n"
        f"[grpc]\n  address = '{socket}'\n"
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([containerd, "--config", str(settings)], stdout=log, stderr=log)
    try:
        asyncio.run(wait_until_served(socket, timeout=60))

        def run(*arguments: str) -> str:
            command = [ctr, "--address", str(socket), "--namespace", "k8s.io", *arguments]
            return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

        archive = tmp_path / "image.tar"
        archive.write_bytes(made.archive(made.layout([LAYER], name=NAME)))
        run("images", "import", "--no-unpack", str(archive))
        yield run
    finally:
        process.terminate()
        process.wait()


@pytest.mark.programs
def test_an_image_is_copied_and_stays_when_containerd_removes_it(real: Callable[..., str], tmp_path: Path) -> None:
    socket, store = tmp_path / "c.sock", ImageStore(tmp_path / "store")
    assert pulled(socket, store) == b"one" * 100_000
    digest = client(socket).resolve(HERE).digest
    with pytest.raises(NotFoundError, match="it is not in the node's containerd"):
        client(socket, f"registry.example/app@{digest}").resolve(HERE)  # a name that the kubelet did not pull
    real("images", "tag", NAME, f"registry.example/app@{digest}")
    assert pulled(socket, store, f"registry.example/app@{digest}") == b"one" * 100_000
    real("images", "rm", "--sync", NAME, f"registry.example/app@{digest}")
    with pytest.raises(NotFoundError):
        client(socket).resolve(HERE)
    record = store.find(NAME)
    assert record is not None
    assert (store.layer(record.layers[0]) / "a").read_bytes() == b"one" * 100_000


@dataclass
class Fake:
    """What containerd may answer. blobs: by digest."""

    blobs: dict[str, bytes]
    target: str

    async def get(self, stream: Stream[Any, Any]) -> None:
        asked = await stream.recv_message()
        assert asked is not None
        assert stream.metadata is not None
        assert stream.metadata["containerd-namespace"] == "k8s.io"
        if asked.name != NAME:
            raise GRPCError(Status.INTERNAL, "broken")
        target = images_pb2.Target(media_type="", digest=self.target, size=1)
        await stream.send_message(images_pb2.GetImageResponse(image=images_pb2.Image(name=NAME, target=target)))

    async def read(self, stream: Stream[Any, Any]) -> None:
        asked = await stream.recv_message()
        assert asked is not None
        if asked.digest not in self.blobs:
            raise GRPCError(Status.NOT_FOUND, "content not found")
        data = self.blobs[asked.digest]
        for at in range(0, len(data), 1000):
            await stream.send_message(content_pb2.ReadContentResponse(offset=at, data=data[at : at + 1000]))

    def __mapping__(self) -> dict[str, Handler]:
        images, content = "containerd.services.images.v1.Images", "containerd.services.content.v1.Content"
        one, many = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        return {
            f"/{images}/Get": Handler(self.get, one, images_pb2.GetImageRequest, images_pb2.GetImageResponse),
            f"/{content}/Read": Handler(
                self.read, many, content_pb2.ReadContentRequest, content_pb2.ReadContentResponse
            ),
        }


def served(socket: Path, fake: Fake, body: Callable[[], Any]) -> Any:
    """Run a blocking body while the fake is served."""

    async def main() -> Any:
        server = Server([fake])
        await server.start(path=str(socket))
        try:
            return await asyncio.to_thread(body)
        finally:
            server.close()
            await server.wait_closed()

    return asyncio.run(main())


@pytest.fixture
def fake() -> Fake:
    layout = made.layout([LAYER], name=NAME)
    blobs = {made.digest(data): data for path, data in layout.items() if path.startswith("blobs/")}
    (target,) = [digest for digest, data in blobs.items() if b'"schemaVersion"' in data]
    return Fake(blobs, target)


def layer_of(fake: Fake) -> str:
    return max(fake.blobs, key=lambda digest: len(fake.blobs[digest]))


def test_what_containerd_answers_is_checked(fake: Fake, tmp_path: Path) -> None:
    socket, store = tmp_path / "c.sock", ImageStore(tmp_path / "store")
    assert served(socket, fake, lambda: pulled(socket, store)) == b"one" * 100_000
    other = ImageStore(tmp_path / "other")
    layer, whole = layer_of(fake), dict(fake.blobs)
    for data, error, text in (
        (whole[layer] + b"x", InvalidError, "longer than"),
        (whole[layer][:-1], InvalidError, "its content is damaged"),
        (bytes([whole[layer][0] ^ 1]) + whole[layer][1:], InvalidError, "its content is damaged"),
    ):
        fake.blobs[layer] = data
        with pytest.raises(error, match=text):
            served(socket, fake, lambda: pulled(socket, other))
    del fake.blobs[layer]
    with pytest.raises(PreconditionError, match="discard_unpacked_layers = false"):
        served(socket, fake, lambda: pulled(socket, other))
    fake.target = "sha512:00"
    with pytest.raises(InvalidError, match="names no sha256 digest"):
        served(socket, fake, lambda: pulled(socket, other))
    assert other.images() == []


def test_a_containerd_that_is_away_or_broken_is_asked_again(fake: Fake, tmp_path: Path) -> None:
    socket = tmp_path / "c.sock"
    with pytest.raises(UnavailableError, match="it does not answer"):
        client(socket).resolve(HERE)
    with pytest.raises(UnavailableError, match="broken"):
        served(socket, fake, lambda: client(socket, "registry.example/other:1").resolve(HERE))


def test_a_stop_ends_a_copy(fake: Fake, tmp_path: Path) -> None:
    socket = tmp_path / "c.sock"

    def stopped() -> None:
        found = client(socket)
        (layer,) = found.resolve(HERE).manifest.layers
        found.progress.halt()
        found.download(layer, tmp_path / "blob")

    with pytest.raises(StoppedError):
        served(socket, fake, stopped)
