"""Growth of bound claims: what is written, what is rejected, and what survives a kill at each step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import PreconditionError, UnavailableError
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.provisioning.claims import growth
from tonnage.storage.pools.base.contract import PoolVolume
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fake.backend import FEATURES, FakeBackend, FakePool
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
_FAILURE = "VolumeResizeFailed"


@pytest.fixture
async def classes(make_class: MakeClass) -> None:
    await make_class("grows", allowVolumeExpansion=True)


async def _bound(node: FakeNode, make_claim: MakeClaim, eventually: Eventually, size: str = "4Gi", **spec: Any) -> None:
    await make_claim("data", size, storageClassName="grows", **spec)
    await node.select("data")
    await eventually(lambda: node.is_bound("data"))


async def _ask(node: FakeNode, size: str) -> None:
    body = {"spec": {"resources": {"requests": {"storage": size}}}}
    await node.client.patch(kinds.CLAIMS, "data", body, "default")


def _has(node: FakeNode, size: str) -> Callable[[], Awaitable[bool]]:
    """Whether claim, PV and volume have that size, and nothing about growth is left in the claim's status."""

    async def check() -> bool:
        claim = await node.claim("data")
        volume = await node.client.get(kinds.VOLUMES, claim.spec.volume_name)
        (made,) = await node.pool.list()
        status, wanted = claim.status, to_bytes(size)
        sizes = {to_bytes(text) for text in (status.capacity["storage"], volume.spec.capacity["storage"])}
        is_idle = not status.allocated_resource_statuses and not status.conditions
        return sizes | {made.size} == {wanted} and is_idle

    return check


async def _failure(node: FakeNode) -> str:
    """The message of the condition ControllerResizeError, where the growth is infeasible."""
    claim = await node.claim("data")
    if claim.status.allocated_resource_statuses != {"storage": growth.CONTROLLER_INFEASIBLE}:
        return ""
    return growth.problem_of(claim)


@pytest.fixture
async def node(classes: None, make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually) -> FakeNode:
    """A node with 10Gi, of which the claim data has 4Gi."""
    made = await make_node("10Gi")
    await _bound(made, make_claim, eventually)
    return made


async def test_a_claim_grows_in_two_writes(node: FakeNode, eventually: Eventually, all_events: AllEvents) -> None:
    before = int((await node.claim("data")).metadata.resource_version)
    await _ask(node, "6Gi")
    await eventually(_has(node, "6Gi"))
    claim = await node.claim("data")
    volume = await node.client.get(kinds.VOLUMES, claim.spec.volume_name)
    versions = [int(obj.metadata.resource_version) for obj in (volume, claim)]
    assert before < versions[0] < versions[1]
    assert claim.metadata.annotations[growth.NODE_NOT_REQUIRED] == "true"
    assert claim.status.allocated_resources == {"storage": "6Gi"}
    await eventually(lambda: node.publishes("4Gi", "4Gi", "grows"))
    assert [reason for name, reason, _ in await all_events() if name == "data"].count("VolumeResizeSuccessful") == 1


@pytest.mark.usefixtures("classes")
async def test_a_fraction_of_a_byte_is_rounded_up(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await _bound(node, make_claim, eventually, "0.1Gi")
    (volume,) = await node.pool.list()
    assert volume.size == 107374183
    assert (await node.claim("data")).spec.resources.requests == {"storage": "107374182400m"}
    await _ask(node, "1.1Gi")
    await eventually(_has(node, "1181116007"))
    claim = await node.claim("data")
    assert claim.status.capacity == {"storage": "1181116007"}
    assert growth.growth_of(claim) is None


async def test_only_the_volume_and_the_status_are_written(node: FakeNode, eventually: Eventually) -> None:
    """Counted as the API server counts: one write of the user, one of the PV, one of the claim's status."""
    written: list[str] = []
    patch = node.client.patch

    async def counted(kind: Any, name: str, body: Any, *args: Any, **options: Any) -> Any:
        if kind not in (kinds.CAPACITIES, kinds.EVENTS, kinds.NODES):  # the Node has its mark at most every 10 minutes
            written.append(f"{kind.plural}/{options.get('subresource', '')}")
        return await patch(kind, name, body, *args, **options)

    node.client.patch = counted  # type: ignore[method-assign]
    await _ask(node, "6Gi")
    await eventually(_has(node, "6Gi"))
    await asyncio.sleep(600)
    assert written == ["persistentvolumeclaims/", "persistentvolumes/", "persistentvolumeclaims/status"]


async def test_what_does_not_fit_says_so_with_numbers_and_once(
    node: FakeNode, eventually: Eventually, all_events: AllEvents
) -> None:
    await _ask(node, "11Gi")

    async def is_told() -> bool:
        return "has 6Gi free, 7Gi more needed" in await _failure(node)

    await eventually(is_told)
    why = await _failure(node)
    assert why.endswith("or ask for less: more than 4Gi, at most 10Gi")
    version = (await node.claim("data")).metadata.resource_version
    node.agents[0].capacity_changed()
    await asyncio.sleep(900)
    assert (await node.claim("data")).metadata.resource_version == version, "nothing is written while nothing changes"
    events = [text for name, reason, text in await all_events() if (name, reason) == ("data", _FAILURE)]
    assert events == [f"claim default/data: not expanded from 4Gi to 11Gi: {why}"]
    assert [made.size for made in await node.pool.list()] == [to_bytes("4Gi")]


async def test_an_absurd_request_reserves_nothing(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """1Ei, and more bytes than 63 bits count: both are answered, and others have the pool's capacity meanwhile."""
    for size in ("1Ei", "9Ei"):
        await _ask(node, size)
        await eventually(lambda: _failure(node))
        await asyncio.sleep(60)
    await make_claim("other", "6Gi", storageClassName="grows")
    await node.select("other")
    await eventually(lambda: node.is_bound("other"))
    assert sorted(made.size for made in await node.pool.list()) == [to_bytes("4Gi"), to_bytes("6Gi")]


async def test_a_class_that_is_gone_does_not_keep_a_claim_from_growing(node: FakeNode, eventually: Eventually) -> None:
    """The API server has admitted the request; the driver alone knows the capacity then."""
    await node.kill_agent()
    await _ask(node, "6Gi")
    await node.client.delete(kinds.STORAGE_CLASSES, "grows")
    await node.start_agent()
    await eventually(_has(node, "6Gi"))


async def test_a_lowered_request_is_tried_at_once(node: FakeNode, eventually: Eventually) -> None:
    await _ask(node, "11Gi")
    await eventually(lambda: _failure(node))
    await _ask(node, "9Gi")
    await eventually(_has(node, "9Gi"))


async def test_it_grows_when_the_pool_has_more_free(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    await make_claim("other", "5Gi", storageClassName="grows")
    await node.select("other")
    await eventually(lambda: node.is_bound("other"))
    await _ask(node, "6Gi")
    await eventually(lambda: _failure(node))
    await node.release("other")

    async def only_data() -> bool:
        return len(await node.volumes()) == 1

    await eventually(only_data)
    await eventually(_has(node, "6Gi"))


async def test_capacity_that_is_reserved_for_claims_is_not_used(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """Another claim has its reservation, and its volume does not exist yet."""
    source = next(iter(node.agents[0].ledger._readings))
    source = replace(source, storage_class="grows")
    node.agents[0].ledger.see("soon", source, to_bytes("5Gi"), attempt="", version=0, now=0.0)
    assert node.agents[0].ledger.reserve(["soon"]) is None
    await _ask(node, "6Gi")

    async def is_told() -> bool:
        return "has 1Gi free, 2Gi more needed" in await _failure(node)

    await eventually(is_told)


async def test_what_the_driver_rejects_is_tried_again_when_it_has_more(
    classes: None, make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """Somebody else used the disk: the ledger does not know it yet."""
    node = await make_node("10Gi")
    await _bound(node, make_claim, eventually)
    node.pool.fake.records.used += to_bytes("5Gi")
    await _ask(node, "6Gi")

    async def is_told() -> bool:
        return "cannot grow by 2Gi" in await _failure(node)

    await eventually(is_told)
    node.agents[0].capacity_changed()
    await asyncio.sleep(60)
    assert await is_told()
    node.pool.fake.records.used -= to_bytes("5Gi")
    node.agents[0].capacity_changed()
    await eventually(_has(node, "6Gi"))


async def test_a_pool_that_cannot_expand_says_what_to_do(
    classes: None,
    make_node: MakeNode,
    make_claim: MakeClaim,
    eventually: Eventually,
) -> None:
    fixed = FakePool("scratch", to_bytes("10Gi"), directories=False, features=replace(FEATURES, expansion=False))
    node = await make_node(pool=fixed)
    await _bound(node, make_claim, eventually)
    await _ask(node, "6Gi")

    async def is_told() -> bool:
        why = growth.problem_of(await node.claim("data"))
        return "does not expand volumes; make a claim of 6Gi instead and copy its content" in why

    await eventually(is_told)


async def test_a_driver_whose_node_part_does_it_all(
    classes: None,
    make_node: MakeNode,
    make_claim: MakeClaim,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As external-resizer: the size is written, and the kubelet calls NodeExpandVolume."""

    async def offered(_client: CsiClient) -> frozenset[str]:
        return frozenset({types.EXPAND_VOLUME})

    monkeypatch.setattr(CsiClient, "node_capabilities", offered)
    fixed = FakePool("scratch", to_bytes("10Gi"), directories=False, features=replace(FEATURES, expansion=False))
    node = await make_node(pool=fixed)
    await _bound(node, make_claim, eventually)
    await _ask(node, "6Gi")

    async def awaits_kubelet() -> bool:
        claim = await node.claim("data")
        volume = await node.client.get(kinds.VOLUMES, claim.spec.volume_name)
        pending = claim.status.allocated_resource_statuses == {"storage": growth.NODE_PENDING}
        return pending and volume.spec.capacity["storage"] == "6Gi"

    await eventually(awaits_kubelet)
    assert (await node.claim("data")).status.capacity["storage"] == "4Gi"


async def test_a_claim_that_is_being_deleted_does_not_grow(node: FakeNode, eventually: Eventually) -> None:
    await node.client.delete(kinds.CLAIMS, "data", "default")
    await _ask(node, "6Gi")
    await asyncio.sleep(60)
    assert [made.size for made in await node.pool.list()] == [to_bytes("4Gi")]


async def test_an_ephemeral_claim_grows(
    classes: None, make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, scratch_pod: Any
) -> None:
    node = await make_node("10Gi")
    pod = await scratch_pod("web", "4Gi", storage_class="grows")
    (name,) = pod.claim_names()
    await node.select(name)
    await eventually(lambda: node.is_bound(name))
    body = {"spec": {"resources": {"requests": {"storage": "6Gi"}}}}
    await node.client.patch(kinds.CLAIMS, name, body, "default")

    async def has_grown() -> bool:
        return (await node.claim(name)).status.capacity["storage"] == "6Gi"

    await eventually(has_grown)


class _Stubborn(FakeBackend):
    """File systems that do not grow while they are mounted."""

    def grow_used(self, record: VolumeRecord) -> VolumeRecord:
        if record.pending:
            raise PreconditionError(f"volume {record.name} does not grow while it is mounted: restart its pod")
        return record


async def test_a_file_system_that_cannot_grow_now_is_left_to_the_kubelet(
    node: FakeNode, eventually: Eventually, all_events: AllEvents
) -> None:
    node.pool.fake.__class__ = _Stubborn
    await _ask(node, "6Gi")

    async def waits() -> bool:
        claim = await node.claim("data")
        return claim.status.allocated_resource_statuses == {"storage": growth.NODE_PENDING}

    await eventually(waits)
    claim = await node.claim("data")
    volume = await node.client.get(kinds.VOLUMES, claim.spec.volume_name)
    assert claim.status.capacity == {"storage": "4Gi"}
    assert claim.status.allocated_resources == volume.spec.capacity == {"storage": "6Gi"}
    assert volume.metadata.annotations[growth.OLD_CAPACITY] == "4Gi"
    assert {one["type"] for one in claim.status.conditions} == {growth.RESIZING, growth.AWAITS_NODE}
    assert "does not grow while it is mounted: restart its pod" in growth.problem_of(claim)
    assert growth.NODE_NOT_REQUIRED not in claim.metadata.annotations
    await node.kill_agent()
    await node.start_agent()
    await asyncio.sleep(60)
    assert (await node.claim("data")).metadata.resource_version == claim.metadata.resource_version
    reasons = [reason for name, reason, _ in await all_events() if name == "data"]
    assert reasons.count("FileSystemResizeRequired") == 1
    done = {"capacity": {"storage": "6Gi"}, "allocatedResourceStatuses": None, "conditions": None}
    await node.client.patch(kinds.CLAIMS, "data", {"status": done}, "default", subresource="status")  # the kubelet

    async def is_tidy() -> bool:
        now = await node.client.get(kinds.VOLUMES, volume.metadata.name)
        return growth.OLD_CAPACITY not in now.metadata.annotations

    await eventually(is_tidy)


async def test_a_driver_that_does_not_answer_is_asked_again(
    node: FakeNode, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    expand, calls = node.pool.growth.expand, list[int]()

    async def failing(name: str, size: int, *, limit: int = 0) -> PoolVolume:
        calls.append(size)
        if len(calls) < 4:
            raise UnavailableError("the disk is away")
        return await expand(name, size, limit=limit)

    monkeypatch.setattr(node.pool.growth, "expand", failing)
    await _ask(node, "6Gi")
    await eventually(_has(node, "6Gi"))
    assert len(calls) == 4


async def test_the_state_that_another_resizer_left_is_taken_over(node: FakeNode, eventually: Eventually) -> None:
    condition = {"type": "Resizing", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kept = condition | {"type": "Other"}
    status = {
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        "allocatedResources": {"storage": "8Gi"},
        "conditions": [condition, kept],
    }
    await node.client.patch(kinds.CLAIMS, "data", {"status": status}, "default", subresource="status")
    await _ask(node, "6Gi")

    async def has_grown() -> bool:
        claim = await node.claim("data")
        return claim.status.capacity["storage"] == "6Gi" and [c["type"] for c in claim.status.conditions] == ["Other"]

    await eventually(has_grown)


# Kills


class _Cut:
    """Stops whoever makes the n-th of some calls for ever, before or after it."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.stopped, self.calls = asyncio.Event(), 0
        self._at, self._after = at, after

    def __call__(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            self.calls += 1
            is_last = self.calls == self._at
            if not is_last:
                return await function(*args, **options)
            if self._after:
                await function(*args, **options)
            self.stopped.set()
            return await asyncio.Event().wait()

        return call


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("then", ["9Gi", "5Gi"])
async def test_a_kill_at_each_step_leaves_nothing_half_done(
    node: FakeNode, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, at: int, after: bool, then: str
) -> None:
    """Steps: the driver's call, the PV, the claim's status. The user may lower the request while the agent is away.

    What is free afterwards would not be enough for the same growth once more.
    """
    cut = _Cut(at, after=after)
    patch, cut_patch = node.client.patch, cut(node.client.patch)

    async def patched(kind: Any, name: str, *args: Any, **options: Any) -> Any:
        is_ours = kind is kinds.VOLUMES or (kind is kinds.CLAIMS and options.get("subresource") == "status")
        return await (cut_patch if is_ours else patch)(kind, name, *args, **options)

    monkeypatch.setattr(CsiClient, "expand_volume", cut(CsiClient.expand_volume))
    monkeypatch.setattr(node.client, "patch", patched)
    await _ask(node, "9Gi")
    await asyncio.wait_for(cut.stopped.wait(), 60)
    await node.kill_agent()
    monkeypatch.undo()
    (made,) = await node.pool.list()
    is_done = (await node.claim("data")).status.capacity == {"storage": "9Gi"}
    if not is_done:
        await _ask(node, then)
    await node.start_agent()
    await eventually(_has(node, "9Gi" if is_done or made.size == to_bytes("9Gi") else then))
    claim = await node.claim("data")
    assert claim.metadata.annotations[growth.NODE_NOT_REQUIRED] == "true"
    left = 10 - to_bytes(claim.status.capacity["storage"]) // 2**30
    await eventually(lambda: node.publishes(f"{left}Gi", f"{left}Gi", "grows"))
