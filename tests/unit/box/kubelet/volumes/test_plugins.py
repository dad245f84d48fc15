"""Drivers that come and go by their registration sockets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tonnage.api.kinds import CSI_NODES, NODES
from tonnage.box.kubelet.volumes.plugins import check
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.registration import CSI_PLUGIN, Registered
from tonnage.errors import Invalid
from tonnage.pools.fake import MemoryPool

DRIVER = "csi.tonnage.dev"


async def test_registration_writes_node_and_csinode(machine: Any, eventually: Any) -> None:
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is not None)
    node = await machine.client.get(NODES, "node-1")
    assert json.loads(node.metadata.annotations["csi.volume.kubernetes.io/nodeid"]) == {DRIVER: "node-1"}
    assert node.metadata.labels["topology.tonnage.dev/node"] == "node-1"
    assert node.metadata.labels["kubernetes.io/hostname"] == "node-1"
    csinode = await machine.client.get(CSI_NODES, "node-1")
    (owner,) = csinode.metadata.owner_references
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Node", "node-1", node.metadata.uid)
    assert owner.controller is None
    entry = csinode.driver(DRIVER)
    assert entry is not None
    assert (entry.node_id, entry.topology_keys, entry.allocatable) == ("node-1", ["topology.tonnage.dev/node"], None)


async def test_a_driver_that_goes_is_taken_out_and_its_labels_stay(machine: Any, eventually: Any) -> None:
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is not None)
    await machine.endpoint.stop()
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is None)
    await eventually(lambda: not machine.kubelet.plugins.busy)
    assert (await machine.client.get(CSI_NODES, "node-1")).driver(DRIVER) is None
    node = await machine.client.get(NODES, "node-1")
    assert "csi.volume.kubernetes.io/nodeid" not in node.metadata.annotations
    assert "topology.tonnage.dev/node" in node.metadata.labels


async def test_a_collision_of_labels_is_told_to_the_driver(machine: Any, eventually: Any) -> None:
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is not None)
    told: list[tuple[bool | None, str]] = []
    driver = Driver("elsewhere", {"p": MemoryPool("p", 1 << 30)}, machine.folder / "s2", name="second.example.org")
    registry = machine.root / "plugins_registry" / "deeper"
    async with DriverEndpoint(driver, machine.folder / "2.sock", registry=registry) as endpoint:
        registration = endpoint._registration
        assert registration is not None
        registration._on_status = lambda registered, error: told.append((registered, error))
        await eventually(lambda: bool(told))
    assert told[0] == (
        False,
        'detected topology value collision: driver reported "topology.tonnage.dev/node":"elsewhere" '
        'but existing label is "topology.tonnage.dev/node":"node-1"',
    )
    assert machine.kubelet.drivers.find("second.example.org") is None


async def test_a_driver_that_comes_again_is_registered_again(machine: Any, eventually: Any) -> None:
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is not None)
    await machine.endpoint.stop()
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is None)
    await machine.endpoint.start()
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is not None)
    await machine.volume("a")
    await machine.pod("p", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}])
    await machine.phase("p", "Running")


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (Registered("DevicePlugin", "a.b", "", ("1.0.0",)), "plugin type 'DevicePlugin' is not supported"),
        (Registered(CSI_PLUGIN, "", "", ("1.0.0",)), "driver name '' is not valid"),
        (Registered(CSI_PLUGIN, "../x", "", ("1.0.0",)), "is not valid"),
        (Registered(CSI_PLUGIN, "a" * 64, "", ("1.0.0",)), "is not valid"),
        (Registered(CSI_PLUGIN, "a.b", "", ("0.3.0", "rubbish")), "supports CSI 0.3.0, rubbish: want a version 1.x"),
        (Registered(CSI_PLUGIN, "a.b", "", ()), "supports CSI nothing"),
    ],
)
def test_what_is_no_csi_driver_is_refused(info: Registered, text: str) -> None:
    with pytest.raises(Invalid, match=text.replace("(", "\\(")):
        check(info)


def test_the_highest_version_counts() -> None:
    assert check(Registered(CSI_PLUGIN, "a.b", "", ("1.0.0", "1.2.0", "2.0.0"))) == (1, 2, 0)
