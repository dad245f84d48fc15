"""The driver `image` behind its socket, over a registry: what one that is hostile or hangs does to other pods."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.unit.csi.full_client import FullCsiClient
from tests.unit.storage.content.server import Files, served
from tests.unit.storage.registry.images import layer_paths, put

from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver.inline_endpoint import InlineEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.inline.driver import InlineDriver
from tonnage.csi.inline.image.source import image_inline
from tonnage.csi.inline.memory import MemoryStore
from tonnage.host import mount
from tonnage.storage.images.store import ImageStore
from tonnage.storage.registry.client import parse_access
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
LAYER = LayerTar().add("a", b"one" * 100_000).data()
MODE = VolumeCapability(AccessMode.SINGLE_NODE_WRITER)
CONTEXT = {
    "csi.storage.k8s.io/ephemeral": "true",
    "csi.storage.k8s.io/pod.name": "web",
    "csi.storage.k8s.io/pod.namespace": "default",
    "csi.storage.k8s.io/pod.uid": "uid-1",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name, as sockets need."""
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


@pytest.fixture
def files() -> Iterator[Files]:
    with served(Files()) as found:
        put(found, "app", "1", LAYER)
        yield found


@pytest.fixture
async def client(files: Files, folder: Path) -> AsyncIterator[FullCsiClient]:
    store = ImageStore(folder / "store")
    archive = folder / "image.tar"
    archive.write_bytes(made.archive(made.layout([LayerTar().add("a", b"loaded").data()], name="here:1")))
    store.load(archive)
    source = image_inline([store.path], parse_access((f"http://localhost:{files.port}",)))
    driver = InlineDriver("d.test", source, MemoryStore(folder / "mem", 2 << 20))
    endpoint = InlineEndpoint(driver, folder / "csi.sock", node_id="n", roots=(folder,), registry=None)
    (folder / "pods").mkdir()
    await endpoint.start()
    try:
        async with FullCsiClient(endpoint.socket) as connected:
            yield connected
    finally:
        await endpoint.stop()
        for one in reversed([one.target for one in mount.mounts() if one.target.startswith(f"{folder}/")]):
            mount.umount(one, lazy=True)


def handle(number: int) -> str:
    return f"csi-{number:064x}"


async def publish(client: FullCsiClient, folder: Path, number: int, image: str) -> Path:
    target = folder / "pods" / str(number)
    await client.publish(handle(number), str(target), MODE, readonly=True, context={**CONTEXT, "image": image})
    return target


async def test_a_registry_that_redirects_into_the_nodes_network_gets_nothing_from_there(
    client: FullCsiClient, files: Files, folder: Path
) -> None:
    for path in layer_paths(files):
        files.redirects[path] = "https://169.254.169.254/latest/meta-data"
    with pytest.raises(CsiError, match=r"169\.254\.169\.254") as rejection:
        await publish(client, folder, 1, f"localhost:{files.port}/app:1")
    assert rejection.value.code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION)
    assert not (folder / "pods" / "1").exists()
    assert os.listdir(folder / "mem") == []
    assert (await publish(client, folder, 2, "here:1") / "a").read_bytes() == b"loaded"


async def test_a_registry_that_hangs_delays_no_pod_whose_image_is_here(
    client: FullCsiClient, files: Files, folder: Path
) -> None:
    files.hold, files.held = threading.Event(), "/blobs/"
    try:
        waiting = asyncio.create_task(publish(client, folder, 1, f"localhost:{files.port}/app:1"))
        while not any("/blobs/" in path for path, _ in files.seen):
            await asyncio.sleep(0.01)
        assert (await publish(client, folder, 2, "here:1") / "a").read_bytes() == b"loaded"
        await client.unpublish(handle(2), str(folder / "pods" / "2"))
        assert not waiting.done()
    finally:
        files.hold.set()
    assert (await waiting / "a").read_bytes() == b"one" * 100_000
