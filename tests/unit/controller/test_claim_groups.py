"""Which claims of a pod belong together, and for how long that is noted on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running

from tonnage.controller.claim_groups import ClaimGroupLabels
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]
WAITING = "status.phase=Pending"


@pytest.fixture
async def together(kube: Client, informers: Informers, make_class: Make) -> ClaimGroupLabels:
    await make_class("late")
    await make_class("now", mode=names.IMMEDIATE)
    await make_class("foreign", provisioner="foreign.example.com")
    return ClaimGroupLabels(context(kube, informers, provisioners=[names.DRIVER], pod_fields=WAITING))


@pytest.fixture
def notes(kube: Client) -> Callable[[], Awaitable[dict[str, str]]]:
    async def read() -> dict[str, str]:
        found = (await kube.list(CLAIMS)).items
        return {c.metadata.name: n for c in found if (n := c.metadata.annotations.get(names.CLAIM_GROUP)) is not None}

    return read


@pytest.fixture
def shows(notes: Any, eventually: Eventually) -> Callable[..., Awaitable[None]]:
    async def wait(**wanted: str) -> None:
        async def same() -> bool:
            return bool(await notes() == wanted)

        await eventually(same)

    return wait


async def bind(kube: Client, claim: str, make_volume: Make) -> None:
    """What the agent and the PV controller write."""
    await make_volume(f"pv-{claim}")
    await kube.patch(CLAIMS, claim, {"spec": {"volumeName": f"pv-{claim}"}}, "default")
    await kube.patch(CLAIMS, claim, {"status": {"phase": "Bound"}}, "default", subresource="status")


async def start(kube: Client, pod: str) -> None:
    await kube.patch(PODS, pod, {"status": {"phase": "Running"}}, "default", subresource="status")


async def test_the_claims_of_a_pod_name_one_another_until_all_are_bound(
    kube: Client,
    together: ClaimGroupLabels,
    make_claim: Make,
    make_pod: Make,
    make_volume: Make,
    running: Running,
    shows: Any,
) -> None:
    for name in "abc":
        await make_claim(name, storageClassName="late")
    async with running(together):
        await make_pod("p", claims=["c", "a", "b"])
        await shows(a="b,c", b="a,c", c="a,b")
        await bind(kube, "a", make_volume)
        await bind(kube, "c", make_volume)
        await shows(a="b,c", b="a,c", c="a,b")  # b may still find no room: then the others go back with it
        await bind(kube, "b", make_volume)
        await shows()


async def test_claims_that_come_after_their_pod(
    together: ClaimGroupLabels, make_claim: Make, make_pod: Make, running: Running, shows: Any
) -> None:
    async with running(together):
        await make_pod("p", claims=["a", "b"])
        await make_claim("a", storageClassName="late")
        await make_claim("b", storageClassName="late")
        await shows(a="b", b="a")


async def test_the_note_goes_with_the_pod(
    kube: Client, together: ClaimGroupLabels, make_claim: Make, make_pod: Make, running: Running, shows: Any
) -> None:
    await make_claim("a", storageClassName="late")
    await make_claim("b", storageClassName="late")
    async with running(together):
        await make_pod("p", claims=["a", "b"])
        await shows(a="b", b="a")
        await kube.delete(PODS, "p", "default", grace_seconds=0)
        await shows()


async def test_what_no_longer_holds_is_removed_after_a_restart_too(
    together: ClaimGroupLabels, make_claim: Make, running: Running, shows: Any
) -> None:
    await make_claim("a", storageClassName="late", annotations={names.CLAIM_GROUP: "b"})
    await make_claim("b", storageClassName="late", annotations={names.CLAIM_GROUP: "a,gone"})
    async with running(together):
        await shows()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"storageClassName": "late"}, {"storageClassName": "now"}, id="binds at once"),
        pytest.param({"storageClassName": "late"}, {"storageClassName": "foreign"}, id="another driver's"),
        pytest.param({"storageClassName": "late"}, {"storageClassName": "nowhere"}, id="unknown class"),
    ],
)
async def test_only_late_claims_of_ours_belong_together(
    together: ClaimGroupLabels, make_claim: Make, make_pod: Make, settle: Settle, notes: Any, first: Any, second: Any
) -> None:
    await make_claim("a", **first)
    await make_claim("b", **second)
    await make_pod("p", claims=["a", "b"])
    await settle()
    for name in "ab":
        await together.reconcile(f"default/{name}")
    assert await notes() == {}


async def test_ephemeral_claims_tell_their_pod_and_get_no_note(
    together: ClaimGroupLabels, make_claim: Make, make_pod: Make, settle: Settle, notes: Any
) -> None:
    pod = await make_pod("p", claims=["a"], ephemeral={"v": {"storageClassName": "late"}})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod.metadata.uid, "controller": True}
    await make_claim("p-v", storageClassName="late", owners=[owner])
    await make_claim("a", storageClassName="late")
    await settle()
    for name in ("a", "p-v"):
        await together.reconcile(f"default/{name}")
    assert await notes() == {}


async def test_data_of_an_earlier_pod_never_belongs_to_a_newer_claim(
    kube: Client,
    together: ClaimGroupLabels,
    make_claim: Make,
    make_pod: Make,
    make_volume: Make,
    settle: Settle,
    notes: Any,
) -> None:
    """a was bound and used together with an earlier b, while no controller ran to take the note off."""
    await make_claim("a", storageClassName="late", annotations={names.CLAIM_GROUP: "b"})
    await bind(kube, "a", make_volume)
    await make_claim("b", storageClassName="late")
    await make_pod("p", claims=["a", "b"])
    await settle()
    volume = together._volumes.get("pv-a")
    assert volume is not None
    earlier = msgspec.structs.replace(volume.metadata, creation_timestamp="2020-01-01T00:00:00Z", resource_version="1")
    together._volumes.put(msgspec.structs.replace(volume, metadata=earlier))
    for name in "ab":
        await together.reconcile(f"default/{name}")
    assert await notes() == {}


async def test_a_pod_that_has_started_needs_no_notes(
    kube: Client, together: ClaimGroupLabels, make_claim: Make, make_pod: Make, settle: Settle, notes: Any
) -> None:
    await make_claim("a", storageClassName="late")
    await make_claim("b", storageClassName="late")
    await make_pod("p", claims=["a", "b"])
    await start(kube, "p")
    await settle_pods(together, settle)
    for name in "ab":
        await together.reconcile(f"default/{name}")
    assert await notes() == {}


async def settle_pods(together: ClaimGroupLabels, settle: Settle) -> None:
    """settle() compares whole lists, and this informer of pods is narrowed."""
    async with asyncio.timeout(60):
        while together._pods.get("default/p") is not None:
            await asyncio.sleep(0.001)


async def test_nothing_is_written_twice(
    kube: Client,
    together: ClaimGroupLabels,
    make_claim: Make,
    make_pod: Make,
    running: Running,
    shows: Any,
    settle: Settle,
) -> None:
    await make_claim("a", storageClassName="late")
    await make_claim("b", storageClassName="late")
    async with running(together):
        await make_pod("p", claims=["a", "b"])
        await shows(a="b", b="a")
        before = (await kube.list(CLAIMS)).resource_version
        await kube.patch(PODS, "p", {"metadata": {"labels": {"x": "y"}}}, "default")
        await settle()
        await kube.patch(CLAIMS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
        await settle()
    assert int((await kube.list(CLAIMS)).resource_version) == int(before) + 2
