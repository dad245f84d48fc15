"""Inline volumes: made by publish, gone with unpublish."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit.csi.driver.heard import Heard
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.errors import HostError
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
MOUNT = VolumeCapability()
HANDLE = names.inline_handle("uid-1", "scratch")
POD = {
    names.CSI_EPHEMERAL: "true",
    names.CSI_POD_NAME: "pod",
    names.CSI_POD_NAMESPACE: "ns",
    names.CSI_POD_UID: "uid-1",
    names.CSI_SERVICE_ACCOUNT: "default",
}

Rejected = Callable[..., Awaitable[CsiError]]


@pytest.fixture
def target(folder: Path) -> Path:
    """A target whose folder exists."""
    (folder / "pod").mkdir()
    return folder / "pod" / "mount"


async def test_it_comes_with_publish_and_goes_with_unpublish(
    client: FullCsiClient, pool: FakePool, driver: Driver, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tonnage.csi.driver.inline")
    for _ in range(2):
        await client.publish(HANDLE, target, MOUNT, context={**POD, "size": "2Gi"})
    (record,) = await pool.list()
    assert (record.name, record.size) == (HANDLE, 2 * GIB)
    assert record.owner[names.CSI_POD_NAME] == "pod"
    assert target.is_dir()
    assert (await client.volume_stats(HANDLE, target)).total == 2 * GIB
    assert (driver.state / "inline").stat().st_mode & 0o777 == 0o700
    assert await client.list_volumes() == [], "no PV tells of it, so nobody may sweep it"
    for _ in range(2):
        await client.unpublish(HANDLE, target)
    assert await pool.list() == []
    assert not target.exists()
    assert list((driver.state / "inline").iterdir()) == []
    (line,) = [r.getMessage() for r in caplog.records if r.name == "tonnage.csi.driver.inline"]
    assert line.startswith(f"deleted what=inline-volume name={pool.name}/{HANDLE} proof=the kubelet unpublished it")


async def test_a_pod_cannot_name_a_claim_as_the_owner(client: FullCsiClient, pool: FakePool, target: Path) -> None:
    forged = {names.CSI_PVC_NAME: "data", names.CSI_PVC_NAMESPACE: "other", names.CSI_PV_NAME: "pvc-1"}
    await client.publish(HANDLE, target, MOUNT, context={**POD, "size": "2Gi", **forged})
    (record,) = await pool.list()
    assert record.owner.keys().isdisjoint(forged)
    assert record.owner[names.CSI_POD_NAME] == "pod"


@pytest.mark.parametrize(
    ("attributes", "texts"),
    [
        ({}, ["'size' is missing", "4Gi"]),
        ({"size": ""}, ["'size' is missing"]),
        ({"size": "0"}, ["size='0'", "more than 0"]),
        ({"size": "-1Gi"}, ["more than 0"]),
        ({"size": "big"}, ["size: 'big' is not a quantity"]),
        ({"size": "1Gi", "pool": "slow"}, ["no pool 'slow'", "default, fast"]),
        ({"size": "1Gi", "colour": "red"}, ["unknown parameter 'colour'"]),
        ({"colour": "red"}, ["unknown parameter 'colour'", "'size' is required"]),
        ({"size": "1Gi", "nsmode": "fsdax"}, ["unknown parameter 'nsmode'"]),
    ],
)
async def test_attributes_that_are_rejected(
    client: FullCsiClient,
    rejected: Rejected,
    pool: FakePool,
    target: Path,
    attributes: dict[str, str],
    texts: list[str],
) -> None:
    publish = client.publish(HANDLE, target, MOUNT, context={**POD, **attributes})
    await rejected(publish, Code.INVALID_ARGUMENT, "volumeAttributes", *texts)
    assert await pool.list() == []


async def test_other_rejections(client: FullCsiClient, rejected: Rejected, pool: FakePool, target: Path) -> None:
    sized = {**POD, "size": "1Gi"}
    publish = client.publish
    bad = Code.INVALID_ARGUMENT
    await rejected(publish(HANDLE, target, VolumeCapability(block=True), context=sized), bad, "needs a claim")
    await rejected(publish(HANDLE, target, VolumeCapability(fstype="ntfs"), context=sized), bad, "'ntfs'")
    await rejected(publish(HANDLE, target, VolumeCapability(AccessMode(5)), context=sized), bad, "one node")
    await rejected(publish(HANDLE, target / "a", MOUNT, context=sized), Code.FAILED_PRECONDITION, "does not exist")
    too_much = publish(HANDLE, target, MOUNT, context={**POD, "size": "1000Gi"})
    await rejected(too_much, Code.OUT_OF_RANGE, "can never fit")
    assert await pool.list() == []
    not_inline = publish(HANDLE, target, MOUNT, context={"size": "1Gi"})
    await rejected(not_inline, Code.NOT_FOUND)


async def test_what_was_published_is_not_changed(client: FullCsiClient, rejected: Rejected, target: Path) -> None:
    await client.publish(HANDLE, target, MOUNT, context={**POD, "size": "1Gi"})
    larger = client.publish(HANDLE, target, MOUNT, context={**POD, "size": "2Gi"})
    await rejected(larger, Code.ALREADY_EXISTS)
    moved = client.publish(HANDLE, target, MOUNT, context={**POD, "size": "1Gi", "pool": "fast"})
    await rejected(moved, Code.ALREADY_EXISTS, "exists in pool default")
    await rejected(client.delete_volume(HANDLE), Code.FAILED_PRECONDITION, "ends with its pod")


async def test_inline_and_persistent_volumes_never_mix(
    client: FullCsiClient, rejected: Rejected, pool: FakePool, target: Path
) -> None:
    made = await client.create_volume("csi-abc", GIB, [MOUNT])
    publish = client.publish("csi-abc", target, MOUNT, context={**POD, "size": "1Gi"})
    await rejected(publish, Code.ALREADY_EXISTS, "is not an inline volume")
    await client.unpublish("csi-abc", target)
    assert [volume.name for volume in await pool.list()] == ["csi-abc"], "made by a claim, it outlives the pod"
    await client.delete_volume(made.id)
    await client.publish("csi-abc", target, MOUNT, context={**POD, "size": "1Gi"})
    create = client.create_volume("csi-abc", GIB, [MOUNT])
    await rejected(create, Code.ALREADY_EXISTS, "inline volume of a pod")


async def test_pmem_csi_attributes_under_its_name(driver: Driver, folder: Path, pool: FakePool, target: Path) -> None:
    pmem = Driver("node-1", driver.pools, driver.state, name="pmem-csi.intel.com")
    attributes = {**POD, "size": "2Gi", "nsmode": "fsdax"}
    async with DriverEndpoint(pmem, folder / "p.sock") as served, FullCsiClient(served.socket) as client:
        await client.publish(HANDLE, target, VolumeCapability(fstype="xfs"), context=attributes)
        (record,) = await pool.list()
        assert (record.fstype, record.size, dict(record.parameters)) == ("xfs", 2 * GIB, {})
        await client.unpublish(HANDLE, target)


class Failing(FakePool):
    """Fails at one step, once."""

    failing = ""

    def _step(self, step: str) -> None:
        if self.failing == step:
            self.failing = ""
            raise HostError(f"{step} failed")

    async def delete(self, name: str, *, wait: bool = True) -> None:
        self._step("delete")
        await super().delete(name, wait=wait)

    async def unstage(self, name: str, path: Path) -> None:
        self._step("unstage")
        await super().unstage(name, path)

    async def publish(self, name: str, staging: Path, target: Path, *, readonly: bool = False) -> None:
        self._step("publish")
        await super().publish(name, staging, target, readonly=readonly)


@pytest.mark.parametrize("step", ["publish", "unstage", "delete"])
async def test_after_a_failure_at_any_step_the_repeated_call_goes_on(
    folder: Path, rejected: Rejected, target: Path, step: str
) -> None:
    pool = Failing("default", GIB)
    pool.failing = step
    changes: list[int] = []
    heard = Heard(lambda: changes.append(pool.fake.records.used))
    driver = Driver("node-1", {"default": pool}, folder / "state", hooks=heard)
    async with DriverEndpoint(driver, folder / "f.sock") as served, FullCsiClient(served.socket) as client:

        async def publish() -> None:
            await client.publish(HANDLE, target, MOUNT, context={**POD, "size": "1Gi"})

        if step == "publish":
            await rejected(publish(), Code.INTERNAL, "publish failed")
            assert await pool.list() == [], "after a final error nobody calls unpublish"
            assert list((folder / "state" / "inline").iterdir()) == []
        await publish()
        if step != "publish":
            await rejected(client.unpublish(HANDLE, target), Code.INTERNAL, f"{step} failed")
            assert len(await pool.list()) == 1, "the record goes last, so that the repeat finds the rest"
        await client.unpublish(HANDLE, target)
        assert await pool.list() == []
        assert changes[-2:] == [GIB, 0], "the room that changed is told"
        assert list((folder / "state" / "inline").iterdir()) == []


async def test_a_failed_repeat_keeps_the_volume_of_a_running_pod(
    folder: Path, rejected: Rejected, target: Path
) -> None:
    pool = Failing("default", GIB)
    driver = Driver("node-1", {"default": pool}, folder / "state")
    async with DriverEndpoint(driver, folder / "f.sock") as served, FullCsiClient(served.socket) as client:
        await client.publish(HANDLE, target, MOUNT, context={**POD, "size": "1Gi"})
        pool.failing = "publish"
        repeat = client.publish(HANDLE, target, MOUNT, context={**POD, "size": "1Gi"})
        await rejected(repeat, Code.INTERNAL, "publish failed")
        assert len(await pool.list()) == 1
        assert target.is_dir()


async def test_a_target_that_shows_another_volume_is_left_alone(
    client: FullCsiClient, rejected: Rejected, pool: FakePool, target: Path
) -> None:
    await client.publish(HANDLE, target, MOUNT, context={**POD, "size": "1Gi"})
    other = client.publish("csi-other", target, MOUNT, context={**POD, "size": "1Gi"})
    await rejected(other, Code.ALREADY_EXISTS, "already shows")
    assert target.is_dir()
    assert [volume.name for volume in await pool.list()] == [HANDLE]
