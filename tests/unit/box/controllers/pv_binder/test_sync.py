"""Steps of the binder: tables of states and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.box.controllers.pv_binder.agent_volumes import MARKS, Make, claim_of, made_by_agent, ref

from tonnage.base.errors import ApiConflictError, PreconditionError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, VOLUMES
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.bind import bind, is_complete
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.testing.clock import ManualClock

Told = Callable[[], Awaitable[list[tuple[str, str, str, str]]]]


async def test_smallest_volume_that_fits_is_bound(kube: Client, make_volume: Make, make_claim: Make, work: Any) -> None:
    for name, size in (("big", "9Gi"), ("small", "1Gi"), ("right", "3Gi")):
        await make_volume(name, size, storageClassName="manual")
    claim = await make_claim("c", "2Gi", storageClassName="manual")
    await work()
    claim, volume = await claim_of(kube, "c"), await kube.get(VOLUMES, "right")
    assert is_complete(claim, volume)
    assert claim.metadata.annotations == {names.BIND_COMPLETED: "yes", names.BOUND_BY_CONTROLLER: "yes"}
    assert claim.status.capacity == {"storage": "3Gi"}
    assert volume.metadata.annotations == {names.BOUND_BY_CONTROLLER: "yes"}
    assert to_builtins(volume.spec.claim_ref).items() >= ref(claim).items()
    assert (await kube.get(VOLUMES, "big")).status.phase == "Available"
    raw = (await kube.read("/api/v1/persistentvolumes/right")).decode()
    assert "lastPhaseTransitionTime" in raw


@pytest.mark.parametrize(
    ("volume", "claim"),
    [
        pytest.param({"size": "1Gi"}, {"size": "2Gi"}, id="too small"),
        pytest.param({"storageClassName": "other"}, {}, id="another class"),
        pytest.param({"volumeMode": "Block"}, {}, id="another mode"),
        pytest.param({}, {"accessModes": ["ReadWriteMany"]}, id="another access mode"),
        pytest.param({}, {"selector": {"matchLabels": {"a": "b"}}}, id="not selected"),
    ],
)
async def test_volume_that_does_not_fit_stays_available(
    kube: Client, make_volume: Make, make_claim: Make, work: Any, volume: dict[str, Any], claim: dict[str, Any]
) -> None:
    await make_volume("v", **volume)
    await make_claim("c", **{"storageClassName": "", **claim})
    await work()
    assert (await kube.get(VOLUMES, "v")).status.phase == "Available"
    assert (await claim_of(kube, "c")).status.phase == "Pending"


async def test_two_claims_get_two_volumes(kube: Client, make_volume: Make, make_claim: Make, work: Any) -> None:
    for name in ("v1", "v2"):
        await make_volume(name)
    for name in ("a", "b"):
        await make_claim(name, storageClassName="")
    await work()
    bound = {(await claim_of(kube, name)).spec.volume_name for name in ("a", "b")}
    assert bound == {"v1", "v2"}


@pytest.mark.parametrize(
    ("build", "event"),
    [
        pytest.param(
            {"storageClassName": ""},
            ("Normal", "FailedBinding", "no persistent volumes available for this claim and no storage class is set"),
            id="no class",
        ),
        pytest.param(
            {"storageClassName": "nowhere"},
            ("Warning", "ProvisioningFailed", 'storageclass.storage.k8s.io "nowhere" not found'),
            id="unknown class",
        ),
        pytest.param(
            {"storageClassName": "late"},
            ("Normal", "WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
            id="nobody uses it",
        ),
        pytest.param(
            {"storageClassName": "late", "annotations": {names.SELECTED_NODE: "n1"}},
            (
                "Normal",
                "ExternalProvisioning",
                "Waiting for a volume to be created either by the external provisioner 'csi.tonnage.dev' or manually "
                "by the system administrator. If volume creation is delayed, please verify that the provisioner is "
                "running and correctly registered.",
            ),
            id="sent to a node",
        ),
        pytest.param(
            {"storageClassName": "static"},
            ("Warning", "ProvisioningFailed", "no volume plugin matched name: kubernetes.io/no-provisioner"),
            id="nobody makes volumes",
        ),
    ],
)
async def test_what_is_said_of_a_waiting_claim(
    make_class: Make, make_claim: Make, work: Any, told: Told, build: dict[str, Any], event: tuple[str, str, str]
) -> None:
    await make_class("late")
    await make_class("static", mode=names.IMMEDIATE, provisioner=names.NO_PROVISIONER)
    await make_claim("c", **build)
    await work()
    await work()
    assert await told() == [("c", *event)]


@pytest.mark.parametrize(
    ("pods", "text"),
    [(["p"], "waiting for pod p to be scheduled"), (["p", "q"], "waiting for pods p,q to be scheduled")],
)
async def test_waiting_pods_are_named(
    make_class: Make, make_claim: Make, make_pod: Make, work: Any, told: Told, pods: list[str], text: str
) -> None:
    await make_class("late")
    for name in pods:
        await make_pod(name, claims=["c"])
    await make_pod("placed", claims=["c"], nodeName="n1")
    await make_claim("c", storageClassName="late")
    await work()
    assert await told() == [("c", "Normal", "WaitForPodScheduled", text)]


async def test_provisioner_is_written_once_when_the_node_is_known(
    kube: Client, make_class: Make, make_claim: Make, work: Any
) -> None:
    await make_class("late")
    await make_claim("c", storageClassName="late")
    await work()
    assert (await claim_of(kube, "c")).metadata.annotations == {}
    await kube.patch(CLAIMS, "c", {"metadata": {"annotations": {names.SELECTED_NODE: "n1"}}}, "default")
    await work()
    claim = await claim_of(kube, "c")
    assert claim.metadata.annotations == MARKS | {names.SELECTED_NODE: "n1"}
    await work()
    assert (await claim_of(kube, "c")).metadata.resource_version == claim.metadata.resource_version


async def test_default_class_is_given_later(kube: Client, make_class: Make, make_claim: Make, work: Any) -> None:
    await make_claim("c")
    await work()
    assert (await claim_of(kube, "c")).spec.storage_class_name is None
    await make_class("std", default=True)
    await work()
    assert (await claim_of(kube, "c")).spec.storage_class_name == "std"


@pytest.mark.parametrize(
    ("volume", "reason", "message"),
    [
        ({"size": "1Gi"}, "VolumeMismatch", 'Cannot bind to requested volume "v": requested PV is too small'),
        (
            {"size": "2Gi", "storageClassName": "x"},
            "VolumeMismatch",
            'Cannot bind to requested volume "v": storageClassName does not match',
        ),
        (
            {"size": "2Gi", "claimRef": {"namespace": "default", "name": "other", "uid": "u"}},
            "FailedBinding",
            'volume "v" already bound to a different claim.',
        ),
    ],
)
async def test_named_volume_that_cannot_be_had(
    kube: Client,
    make_volume: Make,
    make_claim: Make,
    work: Any,
    told: Told,
    volume: dict[str, Any],
    reason: str,
    message: str,
) -> None:
    await make_volume("v", **volume)
    await make_claim("c", "2Gi", storageClassName="", volumeName="v")
    await work()
    assert ("c", "Warning", reason, message) in await told()
    assert (await claim_of(kube, "c")).status.phase == "Pending"


async def test_named_volume_is_bound_when_it_appears(
    kube: Client, make_volume: Make, make_claim: Make, work: Any
) -> None:
    await make_claim("c", storageClassName="", volumeName="v")
    await work()
    assert (await claim_of(kube, "c")).status.phase == "Pending"
    await make_volume("v")
    await work()
    claim, volume = await claim_of(kube, "c"), await kube.get(VOLUMES, "v")
    assert is_complete(claim, volume)
    assert claim.metadata.annotations == {names.BIND_COMPLETED: "yes"}  # a person chose the volume


async def test_volume_set_aside_for_a_late_claim_is_bound_without_a_pod(
    kube: Client, make_class: Make, make_volume: Make, make_claim: Make, work: Any
) -> None:
    await make_class("late")
    await make_volume("free", storageClassName="late")
    await make_volume("mine", storageClassName="late", claimRef={"namespace": "default", "name": "c"})
    await work()
    assert (await kube.get(VOLUMES, "mine")).status.phase == "Available"
    await make_claim("c", storageClassName="late")
    await work()
    volume = await kube.get(VOLUMES, "mine")
    assert is_complete(await claim_of(kube, "c"), volume)
    assert volume.metadata.annotations == {}
    assert (await kube.get(VOLUMES, "free")).status.phase == "Available"


async def test_volume_of_an_agent_is_left_to_it_for_a_while(
    kube: Client,
    binder: Binder,
    make_class: Make,
    make_volume: Make,
    make_claim: Make,
    work: Any,
    manual_clock: ManualClock,
) -> None:
    await make_class("late")
    claim = await make_claim("c", storageClassName="late", annotations={names.SELECTED_NODE: "n1", **MARKS})
    volume = await made_by_agent(make_volume, claim)
    await work()
    assert (await kube.get(VOLUMES, volume.key)) == volume
    assert (await claim_of(kube, "c")) == claim
    manual_clock.now += 1
    assert await binder.reconcile(("claim", "default/c")) == pytest.approx(2.0)
    manual_clock.now += 3
    assert await binder.reconcile(("claim", "default/c")) is None
    assert is_complete(await claim_of(kube, "c"), await kube.get(VOLUMES, volume.key))


@pytest.mark.parametrize("agents", [2, 5])
async def test_all_may_bind_at_once(
    kube: Client, make_class: Make, make_volume: Make, make_claim: Make, agents: int
) -> None:
    await make_class("late")
    claim = await make_claim("c", storageClassName="late")
    volume = await made_by_agent(make_volume, claim)
    ends = await asyncio.gather(*(bind(kube, claim, volume) for _ in range(agents)))
    claim, volume = await claim_of(kube, "c"), await kube.get(VOLUMES, volume.key)
    assert all(end == (claim, volume) for end in ends)
    assert is_complete(claim, volume)


async def test_one_volume_goes_to_one_of_two_claims(kube: Client, make_volume: Make, make_claim: Make) -> None:
    volume = await make_volume("v")
    pair = [await make_claim(name, storageClassName="") for name in ("a", "b")]
    ends = await asyncio.gather(*(bind(kube, claim, volume) for claim in pair), return_exceptions=True)
    assert [type(end) for end in ends if isinstance(end, Exception)] == [PreconditionError]
    bound = [c for c in (await kube.list(CLAIMS)).items if c.spec.volume_name]
    assert len(bound) == 1
    assert is_complete(bound[0], await kube.get(VOLUMES, "v"))


async def test_bind_rejects_a_claim_made_anew(kube: Client, make_volume: Make, make_claim: Make) -> None:
    claim = await make_claim("c", storageClassName="")
    volume = await made_by_agent(make_volume, claim)
    await kube.patch(CLAIMS, "c", {"metadata": {"finalizers": None}}, "default")
    await kube.delete(CLAIMS, "c", "default")
    again = await make_claim("c", storageClassName="")
    with pytest.raises(ApiConflictError):
        await bind(kube, claim, volume)
    assert await claim_of(kube, "c") == again


@pytest.mark.parametrize("done", range(5))
async def test_bind_goes_on_wherever_it_was_cut(kube: Client, make_volume: Make, make_claim: Make, done: int) -> None:
    claim = await make_claim("c", storageClassName="")
    volume = await make_volume("v")
    steps = 0
    patch = kube.patch

    async def cut(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        if steps == done:
            raise asyncio.CancelledError
        steps += 1
        return await patch(*args, **kwargs)

    kube.patch = cut  # type: ignore[method-assign]
    try:
        await bind(kube, claim, volume)
    except asyncio.CancelledError:
        assert done < 4
    kube.patch = patch  # type: ignore[method-assign]
    ended = await bind(kube, claim, volume)
    assert is_complete(*ended)
    assert ended == (await claim_of(kube, "c"), await kube.get(VOLUMES, "v"))


async def test_volume_is_released_when_its_claim_goes(
    kube: Client, make_volume: Make, make_claim: Make, work: Any
) -> None:
    volume = await make_volume("kept", persistentVolumeReclaimPolicy="Retain")
    claim = await make_claim("c", storageClassName="")
    await bind(kube, claim, volume)
    await work()
    await kube.patch(CLAIMS, "c", {"metadata": {"finalizers": None}}, "default")
    await kube.delete(CLAIMS, "c", "default")
    await make_claim("c", storageClassName="nothing")  # the same name is another claim
    await work()
    assert (await kube.get(VOLUMES, "kept")).status.phase == "Released"


async def test_static_volume_with_policy_delete_fails_plainly(
    kube: Client, make_volume: Make, make_claim: Make, work: Any, told: Told
) -> None:
    volume = await make_volume("v", persistentVolumeReclaimPolicy="Delete")
    await bind(kube, await make_claim("c", storageClassName=""), volume)
    await kube.patch(CLAIMS, "c", {"metadata": {"finalizers": None}}, "default")
    await kube.delete(CLAIMS, "c", "default")
    await work()
    failed = await kube.get(VOLUMES, "v")
    assert failed.status.phase == "Failed"
    message = 'error getting deleter volume plugin for volume "v": no deletable volume plugin matched'
    assert ("v", "Warning", "VolumeFailedDelete", message) in await told()
    assert failed.status.message == message


async def test_volume_chosen_for_a_claim_that_got_another_is_free_again(
    kube: Client, make_volume: Make, make_claim: Make, work: Any
) -> None:
    claim = await make_claim("c", storageClassName="")
    await bind(kube, claim, await make_volume("v"))
    await make_volume("ours", claimRef=ref(claim), annotations={names.BOUND_BY_CONTROLLER: "yes"})
    await make_volume("theirs", claimRef=ref(claim))
    await work()
    ours, theirs = await kube.get(VOLUMES, "ours"), await kube.get(VOLUMES, "theirs")
    assert (ours.spec.claim_ref, ours.metadata.annotations, ours.status.phase) == (None, {}, "Available")
    assert theirs.spec.claim_ref is not None
    assert (theirs.spec.claim_ref.name, theirs.spec.claim_ref.uid, theirs.status.phase) == ("c", "", "Available")


async def test_bound_claim_without_its_volume_is_lost(
    kube: Client, make_volume: Make, make_claim: Make, work: Any, told: Told
) -> None:
    await bind(kube, await make_claim("c", storageClassName=""), await make_volume("v"))
    await work()
    await kube.patch(VOLUMES, "v", {"metadata": {"finalizers": None}})
    await kube.delete(VOLUMES, "v")
    await work()
    claim = await claim_of(kube, "c")
    assert (claim.status.phase, claim.status.capacity, claim.status.access_modes) == ("Lost", {}, [])
    assert await told() == [
        ("c", "Warning", "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
    ]


async def test_bound_claim_whose_volume_is_of_another_is_misbound(
    kube: Client, make_volume: Make, make_claim: Make, work: Any, told: Told
) -> None:
    claim = await make_claim("c", storageClassName="")
    await bind(kube, claim, await make_volume("v"))
    await make_claim("thief", storageClassName="", volumeName="v", annotations={names.BIND_COMPLETED: "yes"})
    await work()
    assert (await claim_of(kube, "thief")).status.phase == "Lost"
    assert [(name, reason) for name, _, reason, _ in await told()] == [("thief", "ClaimMisbound")]
    assert is_complete(await claim_of(kube, "c"), await kube.get(VOLUMES, "v"))


async def test_what_is_said_where_a_class_has_no_object(
    kube: Client, make_volume: Make, make_claim: Make, work: Any, told: Told
) -> None:
    await make_volume("small", storageClassName="manual")
    await make_claim("large", "2Gi", storageClassName="manual")
    await make_claim("typo", storageClassName="manuel")
    await work()
    text = "no persistent volume of class manual is available for this claim, and no StorageClass makes one"
    assert await told() == [
        ("large", "Normal", "FailedBinding", text),
        ("typo", "Warning", "ProvisioningFailed", 'storageclass.storage.k8s.io "manuel" not found'),
    ]


async def test_a_volume_that_an_agent_made_for_another_claim_is_bound_at_once(
    kube: Client, binder: Binder, make_class: Make, make_volume: Make, make_claim: Make, work: Any
) -> None:
    """Adopted and named by the claim, or handed over by a volume populator: no agent binds it."""
    await make_class("late")
    first = await make_claim("first", storageClassName="late")
    await make_claim("adopted", storageClassName="late", volumeName=f"pvc-{first.metadata.uid}")
    volume = await made_by_agent(make_volume, first)
    await kube.patch(VOLUMES, volume.key, {"spec": {"claimRef": None}})
    await work()
    assert is_complete(await claim_of(kube, "adopted"), await kube.get(VOLUMES, volume.key))

    second = await make_claim("second", storageClassName="late")
    notes = {names.SELECTED_NODE: "n1", **MARKS}
    target = await make_claim("target", storageClassName="late", annotations=notes)
    handed = await made_by_agent(make_volume, second)
    await kube.patch(VOLUMES, handed.key, {"spec": {"claimRef": ref(target)}})
    await work()
    assert is_complete(await claim_of(kube, "target"), await kube.get(VOLUMES, handed.key))
