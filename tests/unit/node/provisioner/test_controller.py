"""From a claim that is sent to the node to a bound volume, and back."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from tests.hanging import HangingPool
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import BusyError, HostError, UnavailableError
from tonnage.base.transitions import ImpossibleTransitionError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response
from tonnage.node.provisioner.state import LOOK_EVERY, ClaimEvent, Creation, Phase, Reserved, Wait
from tonnage.storage.pools.base.contract import PoolVolume, VolumeRequest
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.testing.node import MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass, MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time


class _Gated(FakePool):
    """create() waits at the gate, before it makes anything."""

    def __init__(self, size: str) -> None:
        super().__init__("scratch", to_bytes(size), directories=False)
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()

    async def create(self, request: VolumeRequest) -> PoolVolume:
        self.waiting.set()
        await self.gate.wait()
        return await super().create(request)


async def test_a_claim_gets_a_volume_and_the_capacity_falls_and_rises(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node()
    await eventually(lambda: node.publishes("30716Mi", "30716Mi"))
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")
    await eventually(lambda: node.is_bound("app-v0"))
    await eventually(lambda: node.publishes("26620Mi", "26620Mi"))
    claim = await node.claim("app-v0")
    volume = await node.client.get(kinds.VOLUMES, f"pvc-{claim.metadata.uid}")
    assert await node.volumes() == [volume.metadata.name]
    assert volume.status.phase == "Bound"
    assert volume.metadata.labels[names.NODE_LABEL] == "node-1"
    assert volume.metadata.annotations[names.PROVISIONED_BY] == names.DRIVER
    assert volume.metadata.annotations[names.DELETION_SECRET_NAME] == ""
    assert names.PROVISIONER_FINALIZER in volume.metadata.finalizers
    affinity, csi = volume.spec.node_affinity, volume.spec.csi
    assert affinity is not None
    assert affinity.required is not None
    assert csi is not None
    term = affinity.required.node_selector_terms[0].match_expressions[0]
    assert (term.key, term.operator, term.values) == (names.TOPOLOGY_NODE, "In", ["node-1"])
    assert csi.volume_handle == f"scratch/{volume.metadata.name}"
    assert csi.volume_attributes[names.CSI_PROVISIONER_IDENTITY].endswith("csi.tonnage.dev-node-1")
    record = (await node.pool.list())[0].owner
    assert (record[names.PARAM_CLUSTER], record[names.PARAM_EPHEMERAL]) == ("cluster-1", "true")
    assert (record[names.PARAM_RECLAIM], record[names.CSI_PVC_NAME]) == ("Delete", "app-v0")

    await node.release("app-v0")
    await eventually(lambda: node.publishes("30716Mi", "30716Mi"))
    assert await node.volumes() == []
    assert await all_events() == [], "who made the pod does not look at its claim"


async def test_a_claim_of_its_own_is_told_of_its_volume(
    make_node: MakeNode, make_claim: MakeClaim, all_events: AllEvents, eventually: Eventually
) -> None:
    node = await make_node()
    await make_claim("mine", storageClassName="late")
    await node.select("mine")
    volume = names.volume_name((await node.claim("mine")).metadata.uid)
    told = ("mine", "ProvisioningSucceeded", f"Successfully provisioned volume {volume}")

    async def is_told() -> bool:
        return bool(await all_events() == [told])

    await eventually(is_told)


async def test_claims_for_others_are_left_alone(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    await make_class("theirs", provisioner="other.example.com")
    for name, storage_class in (("elsewhere", "late"), ("unsent", "late"), ("theirs", "theirs"), ("mine", "late")):
        await make_claim(name, storageClassName=storage_class)
    await node.select("elsewhere", node="node-2")
    await node.select("theirs", "mine")
    await eventually(lambda: node.is_bound("mine"))
    assert len(await node.volumes()) == 1
    assert {await node.phase(c) for c in ("elsewhere", "unsent", "theirs")} == {"Pending"}


async def test_an_immediate_claim_is_served_like_any_other(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    await make_class("now", mode=names.IMMEDIATE)
    await make_claim("data", storageClassName="now")
    await node.select("data")
    await eventually(lambda: node.is_bound("data"))


async def test_binding_can_be_left_to_the_controller(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node(binding="controller")
    await make_claim("data", storageClassName="late")
    await node.select("data")

    async def made() -> Any:
        return (await node.client.list(kinds.VOLUMES)).items

    volume = (await eventually(made))[0]
    await asyncio.sleep(0.05)
    assert await node.phase("data") == "Pending"
    assert volume.spec.claim_ref.name == "data"
    assert names.PROVISIONER_FINALIZER in volume.metadata.finalizers


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"selector": {"matchLabels": {"a": "b"}}}, "claim Selector is not supported"),
        (
            {"dataSourceRef": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x"}},
            "cannot restore: snapshot x does not exist",
        ),
        ({"accessModes": ["ReadWriteMany"]}, "access mode MULTI_NODE_MULTI_WRITER (ReadWriteMany) is not possible"),
    ],
)
async def test_what_cannot_be_had_is_rejected_by_name(
    make_node: MakeNode,
    make_claim: MakeClaim,
    eventually: Eventually,
    all_events: AllEvents,
    spec: dict[str, Any],
    text: str,
) -> None:
    node = await make_node()
    await make_claim("data", storageClassName="late", **spec)
    await node.select("data")

    async def told() -> Any:
        return [t for _, reason, t in await all_events() if reason == "ProvisioningFailed"]

    messages = await eventually(told)
    assert text in messages[0]
    assert 'failed to provision volume with StorageClass "late": ' in messages[0]
    assert await node.volumes() == []


async def test_infeasible_requests_are_not_repeated_at_once(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("30Gi")
    await make_claim("data", storageClassName="late", accessModes=["ReadWriteMany"])
    await node.select("data")

    async def told() -> Any:
        return [t for _, reason, t in await all_events() if reason == "ProvisioningFailed"]

    text = (await eventually(told))[0]
    assert text.startswith("Volume provisioning failed with infeasible error. Retries will be delayed. ")
    assert "one node at a time uses a volume" in text
    uid = (await node.claim("data")).metadata.uid
    assert await node.agents[0].provisioner.reconcile(uid) == LOOK_EVERY
    assert len(await told()) == 1
    await eventually(lambda: node.publishes("30Gi", "30Gi"))  # it may stay for ever, and its room is for others


async def test_a_claim_deleted_while_its_volume_is_made_leaves_nothing(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    pool = _Gated("10Gi")
    node = await make_node(pool=pool)
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")
    await pool.waiting.wait()
    await node.remove_claim("app-v0")
    pool.gate.set()

    async def quiet() -> bool:
        return not node.agents[0].provisioner.busy and await node.volumes() == []

    await eventually(quiet)
    assert (await node.client.list(kinds.VOLUMES)).items == []
    await eventually(lambda: node.publishes("10Gi", "10Gi"))


async def test_a_claim_sent_elsewhere_while_its_volume_is_made_leaves_nothing(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    pool = _Gated("10Gi")
    node = await make_node(pool=pool)
    await make_claim("data", "4Gi", storageClassName="late")
    await node.select("data")
    await pool.waiting.wait()
    await node.select("data", node="node-2")
    pool.gate.set()

    async def quiet() -> bool:
        return not node.agents[0].provisioner.busy and await node.volumes() == []

    await eventually(quiet)
    assert await node.phase("data") == "Pending"


async def test_a_volume_that_takes_long_is_told_of_once(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    pool = _Gated("10Gi")
    node = await make_node(pool=pool)
    await make_claim("data", "4Gi", storageClassName="late")
    await node.select("data")

    async def told() -> list[str]:
        return [text for _, reason, text in await all_events() if reason == "Provisioning"]

    async def is_told() -> bool:
        return bool(await told())

    await eventually(is_told)
    pool.gate.set()
    await eventually(lambda: node.is_bound("data"))
    assert await told() == ['External provisioner is provisioning volume for claim "default/data"']


class _Faulty(FakePool):
    """create() fails with `failures`, one after the other; `made`: after it has made the volume."""

    def __init__(self, *failures: Exception, made: bool = False) -> None:
        super().__init__("scratch", to_bytes("10Gi"), directories=False)
        self.failures, self._made_first = list(failures), made
        self.calls: list[float] = []

    async def create(self, request: VolumeRequest) -> PoolVolume:
        self.calls.append(asyncio.get_running_loop().time())
        if self.failures:
            if self._made_first:
                await super().create(request)
            raise self.failures.pop(0)
        return await super().create(request)


@pytest.mark.parametrize("failure", [HostError("mkfs failed"), UnavailableError("not now"), BusyError("pending")])
async def test_a_failure_is_told_and_tried_again(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents, failure: Exception
) -> None:
    node = await make_node(pool=_Faulty(failure, failure))
    await make_claim("data", "4Gi", storageClassName="late")
    await node.select("data")
    await eventually(lambda: node.is_bound("data"))
    await eventually(lambda: node.publishes("6Gi", "6Gi"))
    assert str(failure) in str([t for _, reason, t in await all_events() if reason == "ProvisioningFailed"])


async def test_a_node_that_fails_again_and_again_gives_the_claim_back(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node(pool=_Faulty(*(HostError("no loop device") for _ in range(3))))
    await make_claim("data", "4Gi", storageClassName="late")
    await node.select("data")

    async def is_given_back() -> bool:
        return names.SELECTED_NODE not in (await node.claim("data")).metadata.annotations

    await eventually(is_given_back)
    (text,) = [text for _, reason, text in await all_events() if reason == "Rescheduled"]
    assert text == "node node-1 cannot make the volume: no loop device; rescheduling"
    await node.select("data")
    await eventually(lambda: node.is_bound("data"))


async def test_a_claim_leaves_a_node_whose_disk_hangs_and_other_volumes_go_on(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    """CreateVolume never ends: its process is in D state."""
    pool = HangingPool("scratch", to_bytes("10Gi"))
    node = await make_node(pool=pool)
    for name in ("old", "new"):
        await make_claim(name, "4Gi", storageClassName="late")
    await node.select("old")
    await eventually(lambda: node.is_bound("old"))
    pool.goes.clear()
    loop = asyncio.get_running_loop()
    before = loop.time()
    await node.select("new")

    async def has_left() -> bool:
        return names.SELECTED_NODE not in (await node.claim("new")).metadata.annotations

    await eventually(has_left)
    assert loop.time() - before < 60
    await eventually(lambda: node.publishes("0", "0"))
    told = {reason: text for about, reason, text in await all_events() if about == "new"}
    assert "it cannot write: a write has not ended for 20 s" in told["ProvisioningFailed"]
    assert "Rescheduled" in told
    await node.use((await node.claim("old")).spec.volume_name)
    await node.release("old")

    async def is_empty() -> bool:
        return await node.volumes() == [] and not node.agents[0].provisioner.busy

    await eventually(is_empty)
    pool.goes.set()  # the volume is made at last, and deleted: nobody waits for it
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await node.select("new")
    await eventually(lambda: node.is_bound("new"))
    assert await node.volumes() == [(await node.claim("new")).spec.volume_name], "it is made once"
    await eventually(lambda: node.publishes("6Gi", "6Gi"))


async def test_calls_that_fail_are_at_most_a_minute_apart(make_node: MakeNode, make_claim: MakeClaim) -> None:
    pool = _Faulty(*(BusyError("in use") for _ in range(10)))
    node = await make_node(pool=pool)
    await make_claim("data", "4Gi", storageClassName="late")
    await node.select("data")
    await asyncio.sleep(600)
    assert await node.is_bound("data")
    pauses = [after - before for before, after in pairwise(pool.calls)]
    assert len(pauses) == 10
    assert max(pauses) < 61
    assert pauses[-1] > 55, "it does back off"


async def test_an_outcome_that_is_not_known_is_followed_up_though_the_claim_is_gone(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    pool = _Faulty(UnavailableError("lost"), UnavailableError("lost"), made=True)
    node = await make_node(pool=pool)
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")

    async def failed() -> bool:
        return len(pool.failures) == 1

    await eventually(failed)
    assert len(await node.volumes()) == 1
    await node.remove_claim("app-v0")

    async def quiet() -> bool:
        return not node.agents[0].provisioner.busy and await node.volumes() == []

    await eventually(quiet)
    await eventually(lambda: node.publishes("10Gi", "10Gi"))


async def test_secrets_are_read_for_making_and_named_for_deleting(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node()
    prefix = f"{names.CSI_PREFIX}provisioner-secret-"
    secret = {f"{prefix}name": "key-of-${pvc.name}", f"{prefix}namespace": "${pvc.namespace}"}
    await make_class("locked", parameters=secret)
    await make_claim("data", storageClassName="locked")
    await node.select("data")

    async def told() -> Any:
        return [t for _, reason, t in await all_events() if reason == "ProvisioningFailed"]

    assert 'secrets "key-of-data" not found' in (await eventually(told))[0]
    await node.client.create(kinds.SECRETS, {"metadata": {"name": "key-of-data"}, "data": {"k": "dg=="}}, "default")
    await eventually(lambda: node.is_bound("data"))
    volume = await node.client.get(kinds.VOLUMES, (await node.claim("data")).spec.volume_name)
    assert volume.metadata.annotations[names.DELETION_SECRET_NAME] == "key-of-data"
    assert volume.metadata.annotations[names.DELETION_SECRET_NAMESPACE] == "default"


class _Dying:
    """A transport that dies at its n-th write, before or after the server has done it."""

    def __init__(self, inner: Any, at: int, *, after: bool) -> None:
        self._inner, self._left, self._after = inner, at, after
        self.dead = asyncio.Event()

    async def request(self, request: Request) -> Response:
        if self.dead.is_set():
            raise UnavailableError("dead")
        if request.method == "GET" or "/events" in request.path:
            return await self._inner.request(request)  # type: ignore[no-any-return]
        self._left -= 1
        if self._left == 0:
            self.dead.set()
            if self._after:
                await self._inner.request(request)
            raise UnavailableError("dead")
        return await self._inner.request(request)  # type: ignore[no-any-return]

    def stream(self, request: Request) -> Any:
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 10))
async def test_killed_at_any_write_the_next_agent_goes_on(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, api_server: Any, at: int, after: bool
) -> None:
    node = await make_node("10Gi", agent=False)
    await scratch_pod("app", "2Gi", "3Gi")
    dying = _Dying(api_server.transport("system:admin"), at, after=after)
    node.client, kube = Client(dying), node.client
    await node.start_agent()
    node.client = kube
    await node.select("app-v0", "app-v1")
    await asyncio.wait({asyncio.ensure_future(dying.dead.wait())}, timeout=0.3)
    await node.kill_agent()
    await node.start_agent()
    for claim in ("app-v0", "app-v1"):
        await eventually(lambda claim=claim: node.is_bound(claim))
    await eventually(lambda: node.publishes("5Gi", "5Gi"))
    assert len(await node.volumes()) == 2
    assert len((await node.client.list(kinds.VOLUMES)).items) == 2
    for claim in ("app-v0", "app-v1"):
        await node.release(claim)
    await eventually(lambda: node.publishes("10Gi", "10Gi"))


async def test_an_impossible_transition_is_an_error_of_that_claim_alone(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of the state machine, here one that a test puts there, is logged with its claim; the others go on."""
    node = await make_node()
    for name in ("bad", "good", "next"):
        await make_claim(name, storageClassName="late")
    uid, table = (await node.claim("bad")).metadata.uid, node.agents[0].context.table
    table.of(uid).phase = Phase.POPULATED
    for name in ("bad", "good", "next"):
        await node.select(name)
    await eventually(lambda: node.is_bound("good"))
    await eventually(lambda: node.is_bound("next"))
    assert await node.phase("bad") == "Pending"
    found = [r for r in caplog.records if r.exc_info and isinstance(r.exc_info[1], ImpossibleTransitionError)]
    assert found
    assert all(f"claim {uid}: " in str(r.exc_info[1]) for r in found if r.exc_info)
    table.of(uid).forget()  # as when the claim leaves
    await eventually(lambda: node.is_bound("bad"))


async def test_no_creation_begins_while_a_sweep_deletes_the_volume_of_an_earlier_one(
    make_node: MakeNode,
    make_claim: MakeClaim,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sweep began while the claim was away from this node, and a round of its group was decided."""
    node = await make_node()
    claim = await make_claim("data", storageClassName="late")
    uid, provisioner = claim.metadata.uid, node.agents[0].provisioner
    real, blocked = provisioner._groups.reserve, asyncio.Event()

    async def reserve(creation: Creation) -> Wait | Reserved:
        outcome = await real(creation)
        if isinstance(outcome, Reserved) and not blocked.is_set():
            node.agents[0].context.table.of(uid).happened(ClaimEvent.BLOCK)
            blocked.set()
        return outcome

    monkeypatch.setattr(provisioner._groups, "reserve", reserve)
    await node.select("data")
    await blocked.wait()
    await asyncio.sleep(LOOK_EVERY)
    assert await node.volumes() == []
    assert not [r for r in caplog.records if r.exc_info], "nothing impossible happened"
    provisioner.unblock(uid)
    await eventually(lambda: node.is_bound("data"))
