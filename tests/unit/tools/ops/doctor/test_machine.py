"""A node looked at from itself: a real driver over a fake pool, an API server in this process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import CsiTopologyRequirement, VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.node.config import node
from tonnage.node.config.node import NodeConfig
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.provisioning.capacity.object import object_name
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools import needs
from tonnage.tools.ops import cluster_snapshot
from tonnage.tools.ops.doctor import machine
from tonnage.tools.ops.doctor.finding import Finding, Level
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store

SYSTEM, NODE = names.SYSTEM_NAMESPACE, "n1"


class _HastyClock(RealClock):
    """Does not wait between two looks."""

    async def sleep(self, seconds: float) -> None:
        return


@pytest.fixture
async def kube() -> AsyncIterator[Client]:
    """A client of a server with a class of ours."""
    server = ApiServer(Store(extractor()))
    await server.start()
    client = Client(server.transport("system:admin"))
    for name in ("kube-system", SYSTEM):
        if name not in {n.metadata.name for n in (await client.list(kinds.NAMESPACES)).items}:
            await client.create(kinds.NAMESPACES, {"metadata": {"name": name}})
    late = {"provisioner": names.DRIVER, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    await client.create(kinds.STORAGE_CLASSES, {"metadata": {"name": "fast"}, **late})
    yield client
    await server.stop()


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    """Of a node with a pool of 10Gi."""
    (tmp_path / "plugins_registry").mkdir()
    pools = [pool_config.parse("fake,name=scratch,size=10Gi")]
    return node.merge({}, {"kubelet": str(tmp_path)}, pools, node=NODE)


@pytest.fixture
async def driver(config: NodeConfig) -> AsyncIterator[StandaloneDriver]:
    """It runs."""
    running = StandaloneDriver(config.driver)
    await running.start()
    yield running
    await running.stop()


async def _publish(kube: Client, capacity: str, storage_class: str = "fast") -> None:
    body: dict[str, Any] = {
        "metadata": {"name": object_name(names.DRIVER, storage_class, NODE)},
        "storageClassName": storage_class,
        "nodeTopology": {"matchLabels": {names.TOPOLOGY_NODE: NODE}},
        "capacity": capacity,
    }
    await kube.create(kinds.CAPACITIES, body, SYSTEM)


async def _look(kube: Client, config: NodeConfig) -> dict[str, Finding]:
    found = await cluster_snapshot.read(kube, SYSTEM, now=RealClock().time())
    findings = await machine.check(found, kube, config, _HastyClock())
    return {f.check: f for f in sorted(findings, key=lambda f: f.level is not Level.OK)}


async def test_all_is_well(kube: Client, config: NodeConfig, driver: StandaloneDriver) -> None:
    await _publish(kube, "10Gi")

    found = await _look(kube, config)

    assert found.keys() == {"node", "driver", "published", "orphans"}
    assert {f.level for f in found.values()} == {Level.OK}


@pytest.mark.parametrize(
    ("published", "level", "text"),
    [
        (
            "20Gi",
            Level.FAIL,
            "published capacity 20Gi differs from the pool's 10Gi, for over a minute: pods are scheduled where they do not fit",
        ),
        (
            "5Gi",
            Level.WARN,
            "published capacity 5Gi differs from the pool's 10Gi, for over a minute: capacity is not used",
        ),
        ("10239Mi", Level.OK, "published capacity of 1 classes equals that of the pools, less reservations"),
    ],
)
async def test_what_is_published_differs(
    kube: Client, config: NodeConfig, driver: StandaloneDriver, published: str, level: Level, text: str
) -> None:
    await _publish(kube, published)

    found = (await _look(kube, config))["published"]

    assert found.level is level
    assert found.text == text


async def test_less_is_published_while_claims_wait(kube: Client, config: NodeConfig, driver: StandaloneDriver) -> None:
    await _publish(kube, "5Gi")
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}}
    await kube.create(
        kinds.CLAIMS, {"metadata": {"name": "c", "labels": {names.NODE_LABEL: NODE}}, "spec": spec}, SYSTEM
    )

    found = (await _look(kube, config))["published"]

    assert found.level is Level.OK


async def test_a_class_whose_mount_options_no_volume_can_have(
    kube: Client, config: NodeConfig, driver: StandaloneDriver
) -> None:
    """The agent publishes nothing for it, and the driver is asked as the agent asks."""
    odd = {"provisioner": names.DRIVER, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER, "mountOptions": ["bind"]}
    await kube.create(kinds.STORAGE_CLASSES, {"metadata": {"name": "odd"}, **odd})
    await _publish(kube, "10Gi")
    await _publish(kube, "0", "odd")

    found = (await _look(kube, config))["published"]

    assert found.level is Level.OK
    assert found.text.startswith("published capacity of 2 classes")


async def test_no_driver(kube: Client, config: NodeConfig) -> None:
    found = (await _look(kube, config))["driver"]

    assert found.level is Level.FAIL
    assert "its socket does not answer" in found.text


async def test_the_registration_is_gone(kube: Client, config: NodeConfig, driver: StandaloneDriver) -> None:
    assert config.driver.registry is not None
    (socket,) = config.driver.registry.iterdir()
    socket.unlink()

    found = (await _look(kube, config))["driver"]

    assert found.level is Level.FAIL
    assert f"{socket} does not exist" in found.text


async def test_another_pool_in_the_file(kube: Client, config: NodeConfig, driver: StandaloneDriver) -> None:
    pools = [*config.driver.pools, pool_config.parse("fake,name=new,size=1Gi")]
    kubelet = {"kubelet": str(config.driver.roots[0])}
    changed = node.merge({}, kubelet, pools, node=NODE)

    found = (await _look(kube, changed))["driver"]

    assert found.level is Level.WARN
    assert "has no pool new" in found.text


async def test_a_volume_of_nobody(kube: Client, config: NodeConfig, driver: StandaloneDriver) -> None:
    place = {names.TOPOLOGY_NODE: NODE}
    cluster = (await kube.get(kinds.NAMESPACES, "kube-system")).metadata.uid
    record = {
        names.CSI_PVC_NAME: "c",
        names.CSI_PVC_NAMESPACE: "team",
        names.CSI_PV_NAME: "pvc-1",
        names.PARAM_CLUSTER: cluster,
    }
    async with CsiClient(config.driver.endpoint) as csi:
        topology = CsiTopologyRequirement([place], [place])
        await csi.create_volume("pvc-1", 1 << 30, [VolumeCapability()], parameters=record, topology=topology)

    found = (await _look(kube, config))["orphans"]

    assert found.level is Level.WARN
    assert "1 orphans, which are not deleted: scratch/pvc-1" in found.text


def test_file_systems_that_the_kernel_knows(tmp_path: Path) -> None:
    listed = tmp_path / "filesystems"
    listed.write_text("nodev\ttmpfs\n\text4\n")

    assert machine.knows("ext4", listed=listed, modules=tmp_path)
    assert machine.knows("xfs", listed=listed, modules=tmp_path / "none")  # nobody can tell
    folder = tmp_path / os.uname().release / "kernel" / "fs"
    (folder / "xfs").mkdir(parents=True)
    assert not machine.knows("xfs", listed=listed, modules=tmp_path)
    (folder / "xfs" / "xfs.ko.xz").touch()
    assert machine.knows("xfs", listed=listed, modules=tmp_path)


async def test_a_program_is_missing(kube: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (needs, machine):
        monkeypatch.setattr(module, "PATH", str(tmp_path))
    pools = [pool_config.parse(f"image:{tmp_path}/{name},size=1Gi,name={name}") for name in ("a", "b")]
    lacking = node.merge({}, {"kubelet": str(tmp_path)}, pools, node=NODE)

    found = (await _look(kube, lacking))["kernel"]

    assert found.level is Level.FAIL
    assert "mkfs.ext4, which was not found (Debian: apt-get install e2fsprogs)" in found.text
    assert found.text.count("mkfs.ext4") == 1
