"""Class parameters: what they choose, and every rejection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pytest

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import CONTEXT_CREATED
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
MOUNT = [VolumeCapability()]
BLOCK = [VolumeCapability(block=True)]
HERE = {names.TOPOLOGY_NODE: "node-1"}
ELSEWHERE = {names.TOPOLOGY_NODE: "node-2"}
Rejected = Callable[..., Awaitable[CsiError]]


@pytest.mark.parametrize(
    ("parameters", "texts"),
    [
        ({"pool": "slow"}, ["no pool 'slow'", "default, fast"]),
        ({"kind": "lvm"}, ["kind 'lvm'", "fake"]),
        ({"pool": "fast", "kind": "lvm"}, ["pool 'fast' is of kind fake"]),
        ({"colour": "red"}, ["unknown parameter 'colour'", "pool"]),
        ({"tonnage.dev/rollback": "true"}, ["unknown parameter 'tonnage.dev/rollback'"]),
        ({"eraseafter": "true"}, ["unknown parameter 'eraseafter'"]),
        ({"fstype": "ntfs"}, ["file system 'ntfs'", "ext4, xfs, btrfs"]),
        ({"fsType": "xfs", names.CSI_FSTYPE: "ext4"}, ["one file system", "ext4 and xfs"]),
        ({names.CSI_FSTYPE: "ntfs"}, ["file system 'ntfs'", "ext4, xfs, btrfs"]),
    ],
)
async def test_parameters_that_are_rejected(
    rejected: Rejected, client: CsiClient, parameters: Mapping[str, str], texts: list[str]
) -> None:
    await rejected(client.create_volume("a", GIB, MOUNT, parameters=parameters), Code.INVALID_ARGUMENT, *texts)
    await rejected(client.get_capacity(parameters), Code.INVALID_ARGUMENT, *texts)


async def test_the_old_name_of_a_kind_is_taken(client: CsiClient, fast: FakePool) -> None:
    await client.create_volume("old", GIB, MOUNT, parameters={"pool": "fast", "kind": "memory"})
    assert (await client.get_capacity({"kind": "memory"})) == (await client.get_capacity({"kind": "fake"}))
    assert [volume.name for volume in await fast.list()] == ["old"]


async def test_parameters_that_are_taken(client: CsiClient, pool: FakePool, fast: FakePool) -> None:
    parameters = {
        "pool": "fast",
        "kind": "fake",
        "erase": "zero",
        names.CSI_FSTYPE: "xfs",
        names.CSI_PVC_NAME: "claim",
        names.CSI_PVC_NAMESPACE: "ns",
        names.CSI_PV_NAME: "pvc-1",
        names.PARAM_CLUSTER: "uid",
        names.PARAM_EPHEMERAL: "true",
        "csi.storage.k8s.io/something-new": "x",
    }
    made = await client.create_volume("pvc-1", GIB, MOUNT, parameters=parameters)
    record = await fast.get("pvc-1")
    assert (made.id, record.fstype, dict(record.parameters)) == ("fast/pvc-1", "xfs", {"erase": "zero"})
    told = dict(made.context)
    assert told.pop(CONTEXT_CREATED)
    assert told == {key: parameters[key] for key in parameters if "/pv" in key or key.startswith("tonnage.dev/")}
    assert record.owner == {**told, "driver": "csi.tonnage.dev"}
    assert (await client.list_volumes())[0].context == made.context
    assert await pool.list() == []
