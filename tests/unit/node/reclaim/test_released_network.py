"""Released volumes of another driver, one that attaches volumes and wants a secret for each deletion."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.kubernetes.api import kinds, names
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.network_driver import NETWORK_DRIVER, NetworkStorage, NetworkVolume, network_client
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClass, MakeVolume
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
CLASS_SECRET = {"provisioner-secret-name": "of-class", "provisioner-secret-namespace": "default"}
NO_SECRET = {names.DELETION_SECRET_NAME: "", names.DELETION_SECRET_NAMESPACE: ""}
OWN_SECRET = {names.DELETION_SECRET_NAME: "own", names.DELETION_SECRET_NAMESPACE: "default"}


@dataclass
class NetworkNode:
    """An agent of a network storage, and a PersistentVolume of it that is Released."""

    node: FakeNode
    storage: NetworkStorage = field(default_factory=NetworkStorage)

    async def start(self) -> None:
        """Start its agent."""
        config = AgentConfig(
            self.node.name, cluster_uid="cluster-1", scope="label", capacity="exact", poll=0, sweep_every=0,
            state=self.node.folder,
        )  # fmt: skip
        client = network_client(self.storage, "id-1")
        agent = NodeAgent(self.node.client, config, clock=LoopClock(), clients=[client])
        self.node.tasks.append(asyncio.ensure_future(agent.run()))

    async def release(self, make_volume: MakeVolume, annotations: dict[str, str]) -> None:
        """Make the volume and its PersistentVolume, of class net."""
        self.storage.volumes["h"] = NetworkVolume(1 << 30)
        await make_volume(
            "v",
            labels={names.NODE_LABEL: self.node.name},
            annotations={names.PROVISIONED_BY: NETWORK_DRIVER, **annotations},
            csi={"driver": NETWORK_DRIVER, "volumeHandle": "h"},
            claimRef={"kind": "PersistentVolumeClaim", "namespace": "default", "name": "x", "uid": "y"},
            persistentVolumeReclaimPolicy="Delete",
            storageClassName="net",
        )
        await self.node.client.patch(kinds.VOLUMES, "v", {"status": {"phase": "Released"}}, subresource="status")

    async def is_deleted(self) -> bool:
        return not self.storage.volumes


@pytest.fixture
async def network(make_node: MakeNode) -> NetworkNode:
    return NetworkNode(await make_node(agent=False))


async def test_a_volume_stays_until_it_is_detached(
    network: NetworkNode, make_volume: MakeVolume, eventually: Eventually, all_events: AllEvents
) -> None:
    client = network.node.client
    spec = {"attacher": NETWORK_DRIVER, "nodeName": "node-9"}
    for name, volume in (("other", "w"), ("csi-1", "v")):
        body = {"metadata": {"name": name}, "spec": {**spec, "source": {"persistentVolumeName": volume}}}
        await client.create(kinds.ATTACHMENTS, body)
    await network.release(make_volume, {})
    await network.start()

    async def failures() -> Any:
        return [text for _, reason, text in await all_events() if reason == "VolumeFailedDelete"]

    assert "v is still attached to node node-9" in (await eventually(failures))[0]
    assert set(network.storage.volumes) == {"h"}
    await client.delete(kinds.ATTACHMENTS, "csi-1")
    await eventually(network.is_deleted)


@pytest.mark.parametrize(
    ("annotations", "parameters", "secret"),
    [
        (OWN_SECRET, CLASS_SECRET, "own"),
        (NO_SECRET, CLASS_SECRET, ""),
        ({**OWN_SECRET, names.DELETION_SECRET_NAMESPACE: ""}, CLASS_SECRET, ""),
        ({}, CLASS_SECRET, "of-class"),
        ({}, {}, ""),
    ],
)
async def test_a_volume_is_deleted_with_the_secret_that_it_names_else_that_of_its_class(
    network: NetworkNode,
    make_volume: MakeVolume,
    make_class: MakeClass,
    eventually: Eventually,
    annotations: dict[str, str],
    parameters: dict[str, str],
    secret: str,
) -> None:
    for name in ("own", "of-class"):
        data = {"key": base64.b64encode(name.encode()).decode()}
        await network.node.client.create(kinds.SECRETS, {"metadata": {"name": name}, "data": data}, "default")
    prefixed = {f"{names.CSI_PREFIX}{key}": value for key, value in parameters.items()}
    await make_class("net", provisioner=NETWORK_DRIVER, parameters=prefixed)
    network.storage.secret = secret
    await network.release(make_volume, annotations)
    await network.start()
    await eventually(network.is_deleted)
