"""What can never be: classes that this node cannot serve, claims that nobody can, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.node.capacity.poller import LONGEST, shorten
from tonnage.node.provisioner.rejection import AGAIN
from tonnage_box.testing.node import MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass, MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
MODE = "access mode MULTI_NODE_MULTI_WRITER (ReadWriteMany) is not possible"
Told = Callable[..., Awaitable[list[str]]]


@pytest.fixture
def told(all_events: AllEvents) -> Told:
    """Messages of an object's events of a reason, in order."""

    async def read(about: str, reason: str = "ProvisioningFailed") -> list[str]:
        return [text for name, why, text in await all_events() if (name, why) == (about, reason)]

    return read


@pytest.fixture
def published(kube: Client) -> Callable[[str], Awaitable[tuple[str | None, str]]]:
    """(capacity, reason) of a class."""

    async def read(storage_class: str) -> tuple[str | None, str]:
        found = (await kube.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)).items
        ours = [c for c in found if c.storage_class_name == storage_class]
        return (ours[0].capacity, ours[0].metadata.annotations.get(names.REASON, "")) if ours else ("", "")

    return read


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"parameters": {"pool": "nope"}}, "there is no pool 'nope' (there is scratch)"),
        ({"parameters": {"pool": "not/a label\nat all"}}, "there is no pool 'not/a label\\nat all' (there is scratch)"),
        ({"parameters": {"kind": "lvm"}}, "there is no pool of kind 'lvm'"),
        ({"parameters": {"colour": "blue"}}, "unknown parameter 'colour': pool scratch takes"),
        ({"parameters": {names.CSI_FSTYPE: "zfs"}}, "file system 'zfs' is not offered by pool scratch"),
        ({"parameters": {"fsType": "zfs"}}, "file system 'zfs' is not offered by pool scratch"),
        ({"parameters": {"fstype": "xfs", names.CSI_FSTYPE: "xfs"}}, "fstype specified in parameters with both"),
        ({"parameters": {f"{names.CSI_PREFIX}what": "x"}}, 'found unknown parameter key "csi.storage.k8s.io/what"'),
        ({"mountOptions": ["usrquota"]}, "mount option 'usrquota' is not allowed"),
    ],
)
async def test_a_class_that_cannot_be_served_says_why(
    make_node: MakeNode,
    make_class: MakeClass,
    eventually: Eventually,
    published: Any,
    told: Told,
    body: dict[str, Any],
    reason: str,
) -> None:
    node = await make_node("10Gi")
    await make_class("wrong", **body)

    async def rejected() -> bool:
        return str((await published("wrong"))[1]).startswith(reason)

    await eventually(rejected)
    assert await node.publishes("0", "0", "wrong")
    assert await published("late") == ("10Gi", ""), "others are not touched"
    (message,) = await eventually(lambda: told("wrong", "InvalidParameters"))
    assert message.startswith(f"driver {names.DRIVER} on node node-1 can make no volumes of this class: {reason}")

    node.agents[0].capacity_changed()
    await asyncio.sleep(200)
    await node.kill_agent()
    await node.start_agent()
    await asyncio.sleep(5)
    assert len(await told("wrong", "InvalidParameters")) == 1, "nor by an agent that starts anew"


async def test_old_words_for_the_file_system_are_no_fault(
    make_node: MakeNode, make_class: MakeClass, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await make_class("old", parameters={"fstype": "xfs"})
    await eventually(lambda: node.publishes("10Gi", "10Gi", "old"))


async def test_a_class_made_anew_is_looked_at_anew(
    make_node: MakeNode, make_class: MakeClass, eventually: Eventually, published: Any
) -> None:
    node = await make_node("10Gi")
    for parameters, shown in (
        ({"pool": "nope"}, ("0", "there is no pool 'nope' (there is scratch)")),
        ({"pool": "scratch"}, ("10Gi", "")),
        ({"colour": "red"}, ("0", "unknown parameter 'colour': pool scratch takes csi.storage.k8s.io/fstype,")),
    ):
        await make_class("changing", parameters=parameters)

        async def is_shown(shown: tuple[str, str] = shown) -> bool:
            capacity, reason = await published("changing")
            return capacity == shown[0] and reason.startswith(shown[1]) and bool(reason) == bool(shown[1])

        await eventually(is_shown)
        await node.client.delete(kinds.STORAGE_CLASSES, "changing")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"accessModes": ["ReadWriteMany"]}, MODE),
        ({"selector": {"matchLabels": {"a": "b"}}}, "claim Selector is not supported"),
        ({"volumeAttributesClassName": "gold"}, 'VAC "gold" does not exist.'),
        ({"volumeAttributesClassName": "odd"}, "'colour'"),
    ],
)
async def test_one_claim_of_a_pod_that_cannot_be_keeps_the_others_from_being_made(
    kube: Client,
    make_node: MakeNode,
    make_pod: MakePod,
    make_claim: MakeClaim,
    eventually: Eventually,
    told: Told,
    spec: Any,
    reason: str,
) -> None:
    node = await make_node("10Gi")
    odd = {"metadata": {"name": "odd"}, "driverName": names.DRIVER, "parameters": {"colour": "red"}}
    await kube.create(kinds.ATTRIBUTES_CLASSES, odd)
    pod = await make_pod("app", ephemeral={"good": {"storageClassName": "late"}, "bad": {"storageClassName": "late"}})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "app", "uid": pod.metadata.uid, "controller": True}
    await make_claim("app-good", "2Gi", owners=[owner], storageClassName="late")
    await make_claim("app-bad", owners=[owner], **{"storageClassName": "late", **spec})
    await node.select("app-good", "app-bad")

    (on_claim,) = await eventually(lambda: told("app-bad"))
    (on_pod,) = await eventually(lambda: told("app"))
    (on_sibling,) = await eventually(lambda: told("app-good"))
    assert on_claim.startswith('failed to provision volume with StorageClass "late": ')
    assert reason in on_claim
    assert on_pod == f"claim app-bad: {on_claim}"
    assert "while claim app-bad of the same pod cannot have one" in on_sibling
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    assert await node.volumes() == []
    assert (await node.claim("app-good")).metadata.annotations[names.SELECTED_NODE] == "node-1", "nowhere is it better"

    await asyncio.sleep(AGAIN / 2)
    assert [len(await told(name)) for name in ("app-bad", "app", "app-good")] == [1, 1, 1]
    await asyncio.sleep(AGAIN * 2)
    counts = {e.involved_object.name: e.count for e in (await kube.list(kinds.EVENTS)).items if reason in e.message}
    assert min(counts.values()) > 1, "told again while it lasts: events expire"


async def test_siblings_are_made_when_the_class_at_fault_is_put_right(
    make_node: MakeNode,
    make_class: MakeClass,
    make_pod: MakePod,
    make_claim: MakeClaim,
    eventually: Eventually,
    told: Told,
) -> None:
    node = await make_node("10Gi")
    await make_class("wrong", parameters={f"{names.CSI_PREFIX}what": "x"})
    wanted = {"good": {"storageClassName": "late"}, "bad": {"storageClassName": "wrong"}}
    pod = await make_pod("app", ephemeral=wanted)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "app", "uid": pod.metadata.uid, "controller": True}
    for volume, spec in wanted.items():
        await make_claim(f"app-{volume}", owners=[owner], **spec)
    await node.select("app-good", "app-bad")
    await eventually(lambda: told("app"))
    assert await node.volumes() == []

    await node.client.delete(kinds.STORAGE_CLASSES, "wrong")
    await make_class("wrong")

    await eventually(lambda: node.is_bound("app-bad"))
    await eventually(lambda: node.is_bound("app-good"))


async def test_a_pod_that_uses_a_plain_claim_is_told_too(
    make_node: MakeNode, make_pod: MakePod, make_claim: MakeClaim, eventually: Eventually, told: Told
) -> None:
    node = await make_node("10Gi")
    await make_pod("app", claims=["data"])
    await make_pod("other", claims=["more"])
    await make_claim("data", storageClassName="late", accessModes=["ReadWriteMany"])
    await node.select("data")

    (on_pod,) = await eventually(lambda: told("app"))
    assert on_pod.startswith("claim data: Volume provisioning failed with infeasible error. ")
    assert MODE in on_pod
    assert await told("other") == []


def test_a_reason_is_one_short_line() -> None:
    assert shorten("  a\n b\t c ") == "a b c"
    assert shorten("x" * LONGEST) == "x" * LONGEST
    assert shorten("word " * LONGEST).endswith(" wo...")
    assert len(shorten("y" * 5000)) == LONGEST
