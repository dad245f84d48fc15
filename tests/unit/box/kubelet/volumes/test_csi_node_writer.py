"""CSINode and Node of a registered driver."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.box.kubelet.machine import Eventually

from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.kubernetes.api.kinds import CSI_NODES, NODES
from tonnage.storage.pools.fake.backend import FakePool

DRIVER = "csi.tonnage.dev"


async def test_registration_writes_node_and_csinode(machine: Any, eventually: Eventually) -> None:
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


async def test_a_collision_of_labels_is_told_to_the_driver(machine: Any, eventually: Eventually) -> None:
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is not None)
    driver = Driver("elsewhere", {"p": FakePool("p", 1 << 30)}, machine.folder / "s2", name="second.example.org")
    registry = machine.root / "plugins_registry" / "deeper"
    async with DriverEndpoint(driver, machine.folder / "2.sock", registry=registry) as endpoint:
        registration = endpoint._served.registration
        assert registration is not None
        await eventually(lambda: registration.registered is not None)
    assert (registration.registered, registration.error) == (
        False,
        'detected topology value collision: driver reported "topology.tonnage.dev/node":"elsewhere" '
        'but existing label is "topology.tonnage.dev/node":"node-1"',
    )
    assert machine.kubelet.drivers.find("second.example.org") is None
