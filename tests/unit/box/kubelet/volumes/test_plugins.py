"""Drivers that come and go by their registration sockets."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.kubelet.machine import Eventually

from tonnage.base.errors import InvalidError
from tonnage.csi.driver.registration import CSI_PLUGIN
from tonnage.kubernetes.api.kinds import CSI_NODES, NODES
from tonnage_box.kubelet.registration import Registered
from tonnage_box.kubelet.volumes.plugins import check

DRIVER = "csi.tonnage.dev"


async def test_a_driver_that_goes_is_taken_out_and_its_labels_stay(machine: Any, eventually: Eventually) -> None:
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is not None)
    await machine.endpoint.stop()
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER) is None)
    await eventually(lambda: machine.kubelet.plugins._controller.queue.idle)
    assert (await machine.client.get(CSI_NODES, "node-1")).driver(DRIVER) is None
    node = await machine.client.get(NODES, "node-1")
    assert "csi.volume.kubernetes.io/nodeid" not in node.metadata.annotations
    assert "topology.tonnage.dev/node" in node.metadata.labels


async def test_a_driver_that_comes_again_is_registered_again(machine: Any, eventually: Eventually) -> None:
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
        (Registered(CSI_PLUGIN, "", "", ("1.0.0",)), "driver name '': want a DNS name"),
        (Registered(CSI_PLUGIN, "../x", "", ("1.0.0",)), "want a DNS name"),
        (Registered(CSI_PLUGIN, "a" * 64, "", ("1.0.0",)), "want a DNS name"),
        (Registered(CSI_PLUGIN, "a.b", "", ("0.3.0", "rubbish")), "supports CSI 0.3.0, rubbish: want a version 1.x"),
        (Registered(CSI_PLUGIN, "a.b", "", ()), "supports CSI nothing"),
    ],
)
def test_what_is_no_csi_driver_is_rejected(info: Registered, text: str) -> None:
    with pytest.raises(InvalidError, match=text.replace("(", "\\(")):
        check(info)


def test_the_highest_version_counts() -> None:
    assert check(Registered(CSI_PLUGIN, "a.b", "", ("1.0.0", "1.2.0", "2.0.0"))) == (1, 2, 0)
