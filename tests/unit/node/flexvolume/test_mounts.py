"""Volumes of FlexVolumes: whose they are, what is left after kills, and what is collected."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from tests.unit.node.flexvolume.flex_node import GIB, FlexNode

from tonnage.base.errors import ApiError, InvalidError, TonnageError
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import VOLUMES
from tonnage.node.flexvolume import mounts as flex_mounts
from tonnage.node.flexvolume.mounts import MOST


async def test_an_inline_volume_lives_from_mount_to_unmount(node: FlexNode) -> None:
    for _ in range(2):  # repeated calls change nothing
        await node.mount("u1", "data", size="1Gi")
    assert len(await node.volumes()) == 1
    await node.mount("u2", "data", size="1Gi")
    assert len(await node.volumes()) == 2
    for _ in range(2):
        await node.unmount("u1", "data")
    assert len(await node.volumes()) == 1
    await node.unmount("u2", "data")
    assert (await node.volumes(), node.records()) == ([], [])


async def test_a_persistent_volume_is_staged_while_a_pod_has_it(node: FlexNode) -> None:
    uid = await node.volume("pv")
    await node.mount("u1", "pv")
    await node.mount("u2", "pv")
    assert await node.volumes() == [f"flex-{uid}"]
    assert node.changes, "capacity is published anew"
    await node.unmount("u1", "pv")
    assert len(node.records()) == 2, "the staging folder and the record of u2"
    await node.unmount("u2", "pv")
    assert node.records() == []
    assert await node.volumes() == [f"flex-{uid}"]


def _on(*nodes: str, key: str = "kubernetes.io/hostname") -> dict[str, Any]:
    there = {"key": key, "operator": "In", "values": list(nodes)}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}}


@pytest.mark.parametrize("key", ["kubernetes.io/hostname", "topology.tonnage.dev/node"])
async def test_one_of_policy_delete_is_held_before_its_volume_exists(
    node: FlexNode, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    await node.volume("pv", persistentVolumeReclaimPolicy="Delete", nodeAffinity=_on("node-1", key=key))

    async def killed(*_given: Any, **_more: Any) -> None:
        raise TonnageError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(node.driver, "create_volume", killed)
        with pytest.raises(TonnageError):
            await node.mount("u1", "pv")
    held = (await node.client.get(VOLUMES, "pv")).metadata
    assert held.finalizers[-1] == names.PROVISIONER_FINALIZER
    assert held.labels[names.NODE_LABEL] == "node-1"
    assert held.annotations[names.PROVISIONED_BY] == "flex.tonnage.dev"
    await node.mount("u1", "pv")
    await node.mount("u2", "pv")
    assert (await node.client.get(VOLUMES, "pv")).metadata.resource_version == held.resource_version, "written once"


async def test_a_volume_of_another_provisioner_is_held_as_its_own(node: FlexNode) -> None:
    own = {names.PROVISIONED_BY: "monostream.com/localflex-provisioner"}
    await node.volume("pv", annotations=own, persistentVolumeReclaimPolicy="Delete", nodeAffinity=_on("node-1"))
    await node.mount("u1", "pv")
    held = (await node.client.get(VOLUMES, "pv")).metadata
    assert (held.annotations, held.finalizers[-1]) == (own, names.PROVISIONER_FINALIZER)


async def test_what_a_person_took_from_it_is_written_again(node: FlexNode) -> None:
    await node.volume("pv", persistentVolumeReclaimPolicy="Delete", nodeAffinity=_on("node-1"))
    await node.mount("u1", "pv")
    held = (await node.client.get(VOLUMES, "pv")).metadata
    await node.client.patch(VOLUMES, "pv", {"metadata": {"labels": None, "annotations": None}})
    await node.mount("u2", "pv")
    again = (await node.client.get(VOLUMES, "pv")).metadata
    assert (again.labels, again.annotations, again.finalizers) == (held.labels, held.annotations, held.finalizers)


@pytest.mark.parametrize(
    "more",
    [
        {"persistentVolumeReclaimPolicy": "Retain", "nodeAffinity": _on("node-1")},
        {"persistentVolumeReclaimPolicy": "Delete"},
        {"persistentVolumeReclaimPolicy": "Delete", "nodeAffinity": _on("node-1", "node-2")},
        {"persistentVolumeReclaimPolicy": "Delete", "nodeAffinity": _on("node-2")},
    ],
    ids=["retained", "anywhere", "two nodes", "another node"],
)
async def test_another_one_is_not_held(node: FlexNode, more: dict[str, Any]) -> None:
    uid = await node.volume("pv", **more)
    await node.mount("u1", "pv")
    assert await node.volumes() == [f"flex-{uid}"]
    assert names.PROVISIONER_FINALIZER not in (await node.client.get(VOLUMES, "pv")).metadata.finalizers


async def test_one_that_may_not_be_held_is_mounted(
    node: FlexNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await node.volume("pv", persistentVolumeReclaimPolicy="Delete", nodeAffinity=_on("node-1"))

    async def rejected(*_given: Any, **_more: Any) -> None:
        failure = ApiError("policy of an older version")
        failure.code = 403
        raise failure

    monkeypatch.setattr(node.client, "patch", rejected)
    await node.mount("u1", "pv")
    assert "persistentvolume pv: its volume stays" in caplog.text


async def test_the_volume_of_a_claim_is_the_one_that_its_persistent_volume_names(node: FlexNode) -> None:
    made = await node.driver.create_volume("pvc-u", GIB, [VolumeCapability()])
    await node.volume("pv", handle=made.id)
    await node.mount("u1", "pv", volumeHandle=made.id)
    assert await node.volumes() == ["pvc-u"]
    assert node.changes == [], "nothing was made"
    await node.unmount("u1", "pv")
    assert (await node.volumes(), node.records()) == (["pvc-u"], [])


async def test_a_volume_of_a_claim_that_is_lost_is_not_made_anew(node: FlexNode) -> None:
    await node.volume("pv", handle="default/pvc-lost")
    with pytest.raises(CsiError, match="pvc-lost"):
        await node.mount("u1", "pv", volumeHandle="default/pvc-lost")
    assert await node.volumes() == []
    await node.unmount("u1", "pv")
    assert node.records() == []


async def test_a_pod_cannot_name_a_volume(node: FlexNode) -> None:
    made = await node.driver.create_volume("pvc-u", GIB, [VolumeCapability()])
    with pytest.raises(CsiError, match="unknown parameter 'volumeHandle'"):
        await node.mount("u1", "data", size="1Gi", volumeHandle=made.id)
    assert await node.volumes() == ["pvc-u"]


@pytest.mark.parametrize("other", [{"namespace": "theirs"}, {"driver": "example.com/else"}])
async def test_a_name_alone_gives_no_pod_a_persistent_volume(node: FlexNode, other: dict[str, Any]) -> None:
    uid = await node.volume("pv", **other)
    await node.mount("u1", "pv", size="1Gi")
    assert f"flex-{uid}" not in await node.volumes()
    with pytest.raises(InvalidError, match='"size" is missing'):
        await node.mount("u2", "pv")


async def test_reserved_keys_are_rejected(node: FlexNode) -> None:
    for key in ("tonnage.dev/cluster", "csi.storage.k8s.io/ephemeral"):
        with pytest.raises(InvalidError, match="is reserved"):
            await node.mount("u1", "data", size="1Gi", **{key: "x"})
    assert await node.volumes() == []


@pytest.mark.parametrize("step", ["create_volume", "stage", "publish", "unpublish", "unstage"])
async def test_a_call_that_ends_at_any_step_is_completed_by_the_next(
    node: FlexNode, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    uid = await node.volume("pv")
    driver = node.driver
    real = getattr(driver, step)

    async def killed(*_given: Any, **_more: Any) -> None:
        monkeypatch.setattr(driver, step, real)
        raise TonnageError("killed")

    monkeypatch.setattr(driver, step, killed)
    failures = 0
    for call in (node.mount, node.mount, node.unmount, node.unmount):
        try:
            await call("u1", "pv")
        except TonnageError:
            failures += 1
            await call("u1", "pv")
    assert failures == 1
    assert (node.records(), await node.volumes()) == ([], [f"flex-{uid}"])


async def test_what_vanished_pods_had_is_collected(node: FlexNode) -> None:
    uid = await node.volume("pv")
    await node.mount("gone", "data", size="1Gi")
    await node.mount("gone", "pv")
    await node.mount("here", "data", size="1Gi")
    shutil.rmtree(node.kubelet / "pods" / "gone")
    await node.mounts.collect()
    assert [name for name in await node.volumes() if name.startswith("flex-")].count(f"flex-{uid}") == 1
    assert len(await node.volumes()) == 2
    assert len(node.records()) == 1
    await node.mounts.collect()
    assert len(await node.volumes()) == 2


async def test_many_at_once_and_a_folder_that_is_away_delete_nothing(node: FlexNode) -> None:
    for number in range(MOST + 1):
        await node.mount(f"u{number}", "data", size="1Gi")
        shutil.rmtree(node.kubelet / "pods" / f"u{number}")
    await node.mounts.collect()
    assert len(await node.volumes()) == MOST + 1
    await node.mounts._unmount(node.target("u0", "data"))
    shutil.rmtree(node.kubelet / "pods")
    await node.mounts.collect()
    assert len(await node.volumes()) == MOST


async def test_a_damaged_record_is_left_alone_and_named(node: FlexNode) -> None:
    await node.mount("u1", "data", size="1Gi")
    (record,) = node.records()
    record.write_text("{")
    with pytest.raises(InvalidError, match="damaged record"):
        await node.unmount("u1", "data")
    await node.mount("u2", "data", size="1Gi")
    await node.unmount("u2", "data")  # one bad record does not stop the others
    await node.mounts.collect()
    assert record.read_text() == "{"
    assert len(await node.volumes()) == 1


def test_the_limits_are_those_of_the_sweep() -> None:
    from tonnage.node import orphans

    assert orphans.MOST == flex_mounts.MOST
