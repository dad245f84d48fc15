"""A node's file changes while the node serves: what the kubelet's swap of a ConfigMap brings about."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tonnage.aio.clock import RealClock
from tonnage.api import kinds, names
from tonnage.box.apiserver.server.server import ApiServer, extractor
from tonnage.box.apiserver.storage.store import MemoryStore
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.kube.client import Client
from tonnage.node import config_watch
from tonnage.node.config import driver
from tonnage.node.config import node as config_node
from tonnage.node.config.node import NODE_FILE, NodeConfig
from tonnage.node.process import NodeProcess

GIB = 1 << 30
ONE = {"name": "one", "kind": "fake", "size": "1Gi"}
TWO = {"name": "two", "kind": "fake", "size": "2Gi"}


@dataclass
class Mounted:
    """A ConfigMap as the kubelet mounts it: node.yaml -> ..data/node.yaml, ..data -> a folder with the time in it."""

    folder: Path
    kubelet: Path
    number: int = field(default=0)

    @property
    def file(self) -> Path:
        """What --config names."""
        return self.folder / "node.yaml"

    def put(self, **content: object) -> None:
        """Swap it for that content, as kubernetes/pkg/volume/util/atomic_writer.go does."""
        self.put_text(yaml.safe_dump({"kubelet": str(self.kubelet), **content}))

    def put_text(self, text: str) -> None:
        """The same, of any text."""
        before = os.readlink(self.folder / "..data") if self.number else ""
        self.number += 1
        folder = self.folder / f"..2026_11_20_{self.number}"
        folder.mkdir()
        (folder / "node.yaml").write_text(text)
        (self.folder / "..data_tmp").symlink_to(folder.name)
        os.rename(self.folder / "..data_tmp", self.folder / "..data")
        if not self.file.is_symlink():
            self.file.symlink_to("..data/node.yaml")
        if before:
            (self.folder / before / "node.yaml").unlink()
            (self.folder / before).rmdir()

    def read(self) -> NodeConfig:
        """The configuration, as the command line reads it."""
        file = driver.load(self.file, NODE_FILE)
        pools = driver.pools_of(file, str(self.file))
        return config_node.merge(file, {}, pools, node="node-1")


@dataclass
class Node:
    """A node that serves, its ConfigMap, and a client of the API server."""

    process: NodeProcess
    mounted: Mounted
    kube: Client
    uid: str

    async def events(self) -> list[tuple[str, str, str]]:
        """Type, reason and message of those on the Node."""
        found = (await self.kube.list(kinds.EVENTS)).items
        return [(e.type, e.reason, e.message) for e in found if e.involved_object.uid == self.uid]

    async def told(self, text: str, *, reason: str) -> str:
        """Wait for an Event on the Node; its type."""
        async with asyncio.timeout(60):
            while True:
                for type_, found, message in await self.events():
                    if found == reason and text in message:
                        return type_
                await asyncio.sleep(0.01)

    def csi(self) -> CsiClient:
        """A client of its driver."""
        return CsiClient(self.process.config.driver.endpoint)


@pytest.fixture
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Mounted:
    """A ConfigMap with one pool; paths are short, for sockets."""
    folder = tmp_path_factory.mktemp("c")
    (folder / "config").mkdir()
    (folder / "k" / "plugins_registry").mkdir(parents=True)
    made = Mounted(folder / "config", folder / "k")
    made.put(pools=[ONE])
    return made


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody writes slowly here; the level of the log is put back."""
    monkeypatch.setattr(config_watch, "SETTLE", 0.01)
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture
async def node(mounted: Mounted) -> AsyncIterator[Node]:
    """A node over it."""
    server = ApiServer(MemoryStore(extractor()))
    await server.start()
    kube, client = Client(server.transport("system:admin")), Client(server.transport("system:admin"))
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    uid = (await kube.create(kinds.NODES, {"metadata": {"name": "node-1"}})).metadata.uid
    for name in ("one", "two"):
        body = {"metadata": {"name": name}, "provisioner": names.DRIVER, "parameters": {"pool": name}}
        await kube.create(kinds.STORAGE_CLASSES, body)
    process = NodeProcess(mounted.read(), client, live=(mounted.file, mounted.read), clock=RealClock())
    await process.start()
    yield Node(process, mounted, kube, uid)
    await process.stop()
    await server.stop()


async def published(node: Node, wanted: dict[str, int]) -> None:
    """Wait until each class has that much room."""
    async with asyncio.timeout(60):
        while {c.storage_class_name: c.capacity for c in (await node.kube.list(kinds.CAPACITIES)).items} != {
            name: f"{size}Gi" if size else "0" for name, size in wanted.items()
        }:
            await asyncio.sleep(0.01)


async def make(node: Node, name: str, pool: str, size: int = GIB // 2) -> str:
    """A volume in a pool; its id."""
    async with node.csi() as csi:
        return (await csi.create_volume(name, size, [VolumeCapability()], parameters={"pool": pool})).id


async def test_a_pool_that_is_added_serves_without_a_restart(node: Node) -> None:
    await published(node, {"one": 1, "two": 0})
    node.mounted.put(pools=[ONE, TWO])
    assert await node.told("pool two is added: fake,name=two,size=2Gi", reason="ConfigurationChanged") == "Normal"
    await published(node, {"one": 1, "two": 2})
    assert await make(node, "pvc-1", "two") == "two/pvc-1"
    async with node.csi() as csi:
        assert (await csi.plugin_info()).manifest[names.MANIFEST_POOLS] == "one=fake,two=fake"


async def test_an_empty_pool_goes_and_comes_back(node: Node) -> None:
    node.mounted.put(pools=[ONE, TWO])
    await published(node, {"one": 1, "two": 2})
    node.mounted.put(pools=[ONE])
    await node.told("pool two is no longer served", reason="ConfigurationChanged")
    await published(node, {"one": 1, "two": 0})
    node.mounted.put(pools=[ONE, TWO])
    await published(node, {"one": 1, "two": 2})


async def test_a_pool_with_volumes_stays_and_says_so(node: Node) -> None:
    node.mounted.put(pools=[ONE, TWO])
    await published(node, {"one": 1, "two": 2})
    await make(node, "pvc-1", "two", GIB)
    node.mounted.put(pools=[ONE])
    said = await node.told(
        "pool two is not removed: it has 1 volumes (pvc-1); put it back", reason="ConfigurationRefused"
    )
    assert said == "Warning"
    async with node.csi() as csi:
        assert [v.id for v in await csi.list_volumes()] == ["two/pvc-1"]
        await csi.delete_volume("two/pvc-1")
    node.mounted.put(pools=[ONE], logLevel="warning")  # any change: it is tried again
    await node.told("pool two is no longer served", reason="ConfigurationChanged")


async def test_bounds_change_and_volumes_stay(node: Node) -> None:
    await published(node, {"one": 1, "two": 0})
    await make(node, "pvc-1", "one", GIB)
    node.mounted.put(pools=[ONE | {"size": "4Gi"}])
    await node.told("pool one has new limits: fake,name=one,size=4Gi", reason="ConfigurationChanged")
    await published(node, {"one": 3, "two": 0})
    node.mounted.put(pools=[ONE | {"size": "512Mi"}])
    await published(node, {"one": 0, "two": 0})
    async with node.csi() as csi:
        assert [v.size for v in await csi.list_volumes()] == [GIB]


async def test_what_needs_a_restart_is_refused_and_the_rest_is_done(node: Node) -> None:
    node.mounted.put(pools=[ONE | {"largest": "1Mi"}, TWO], bind="controller", topologyKey="example.com/node")
    await node.told("pool one is fake,name=one,size=1Gi and cannot become", reason="ConfigurationRefused")
    await node.told("bind changes from agent to controller, which is read at the start", reason="ConfigurationRefused")
    await node.told("topologyKey changes from", reason="ConfigurationRefused")
    await published(node, {"one": 1, "two": 2})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pools: [", "line 1"),
        ("pools: []", "no pools: name at least one"),
        ("pools: [{name: one, kind: fake, sise: 1Gi}]", "sise"),
        ("nodeNames: x", "unknown field"),
    ],
)
async def test_a_file_that_cannot_be_read_changes_nothing(node: Node, text: str, said: str) -> None:
    node.mounted.put_text(text)
    assert await node.told(said, reason="ConfigurationRefused") == "Warning"
    assert [e for e in await node.events() if "everything stays as it was" in e[2]]
    assert await make(node, "pvc-1", "one") == "one/pvc-1"
    node.mounted.put(pools=[ONE, TWO])
    await node.told("pool two is added", reason="ConfigurationChanged")


async def test_a_pool_that_cannot_be_is_not_added(node: Node, tmp_path: Path) -> None:
    bad = {"name": "bad", "kind": "image", "path": str(tmp_path / "pool"), "rootfs": True, "overcommit": "yes"}
    node.mounted.put(pools=[ONE, bad])
    await node.told("pool bad is not added: ", reason="ConfigurationRefused")
    assert not (tmp_path / "pool").exists()
    async with node.csi() as csi:
        assert (await csi.plugin_info()).manifest[names.MANIFEST_POOLS] == "one=fake"


async def test_a_pool_whose_disk_is_away_is_added_and_tried_again(node: Node, tmp_path: Path) -> None:
    """On the node's own disk nothing is made meanwhile: the pool did not say rootfs."""
    away = tmp_path / "away"
    node.mounted.put(pools=[ONE, {"name": "away", "kind": "image", "path": str(away), "size": "1Gi"}])
    said = await node.told("pool away is added, but not open yet: ", reason="ConfigurationChanged")
    assert said == "Warning"
    assert not away.exists()
    node.mounted.put(pools=[ONE])
    await node.told("pool away is no longer served", reason="ConfigurationChanged")
    async with node.csi() as csi:
        assert await csi.list_volumes() == []


async def test_metrics_move(node: Node) -> None:
    node.mounted.put(pools=[ONE], metrics="127.0.0.1:0", logLevel="error")
    await node.told("metrics and health are served at 127.0.0.1:0", reason="ConfigurationChanged")
    url = node.process.driver.metrics_url
    assert url.startswith("http://127.0.0.1:")
    assert logging.getLogger().level == logging.ERROR
    port = int(url.split(":")[2].split("/")[0])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    node.mounted.put(pools=[ONE])
    await node.told("served at no address any more", reason="ConfigurationChanged")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_metrics_that_cannot_be_served_stay_where_they_are(node: Node) -> None:
    taken = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    number = taken.sockets[0].getsockname()[1]
    node.mounted.put(pools=[ONE], metrics="127.0.0.1:0")
    await node.told("served at 127.0.0.1:0", reason="ConfigurationChanged")
    node.mounted.put(pools=[ONE], metrics=f"127.0.0.1:{number}")
    await node.told("metrics stay where they are: cannot serve", reason="ConfigurationRefused")
    port = int(node.process.driver.metrics_url.split(":")[2].split("/")[0])
    assert port != number
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    taken.close()


async def test_a_plain_file_is_followed_too(node: Node) -> None:
    """Written in place, and renamed over by an editor."""
    file = node.mounted.file
    text = {"kubelet": str(node.mounted.kubelet)}
    file.unlink()
    file.write_text(yaml.safe_dump({**text, "pools": [ONE, TWO]}))
    await node.told("pool two is added", reason="ConfigurationChanged")
    beside = file.with_name("node.yaml.swp")
    beside.write_text(yaml.safe_dump({**text, "pools": [ONE]}))
    os.rename(beside, file)
    await node.told("pool two is no longer served", reason="ConfigurationChanged")


async def test_a_volume_on_its_way_into_a_pool_that_goes_is_not_lost(node: Node) -> None:
    """The call that makes it was let in before the pool was taken away."""
    node.mounted.put(pools=[ONE, TWO])
    await node.told("pool two is added", reason="ConfigurationChanged")
    pool = next(p for p in node.process.driver.pools if p.name == "two")
    gate, inside = asyncio.Event(), asyncio.Event()
    create = pool.create

    async def slowly(request: object) -> object:
        inside.set()
        await gate.wait()
        return await create(request)  # type: ignore[arg-type]

    pool.create = slowly  # type: ignore[assignment,method-assign]
    async with asyncio.TaskGroup() as tasks:
        making = tasks.create_task(make(node, "pvc-1", "two"))
        await inside.wait()
        node.mounted.put(pools=[ONE])
        async with asyncio.timeout(60):
            while "two" in [p.name for p in node.process.driver.pools]:
                await asyncio.sleep(0.01)
        gate.set()
        assert await making == "two/pvc-1"
    await node.told("pool two is not removed: it has 1 volumes", reason="ConfigurationRefused")
    assert [p.name for p in node.process.driver.pools] == ["one", "two"]
