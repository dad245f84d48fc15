"""What is written before a pod is bound, and when the wait ends, with the error texts of Kubernetes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.base.errors import PreconditionError
from tonnage.kubernetes.api import names
from tonnage.provisioning.claims.bind import claim_reference
from tonnage.scheduler.core.binding import Binding, BindingWaits, RescheduledError, claim_patch
from tonnage.scheduler.framework.plugin import SchedulingDecision
from tonnage.scheduler.framework.pod_info import compile_ask

NODE = "node-1"
SENT = {names.SELECTED_NODE: NODE}


@pytest.fixture
def stage(world: World) -> Any:
    """A node, two late classes: one whose volumes are made, one whose volumes are there."""
    world.node(NODE)
    world.storage_class()
    world.storage_class("disks", driver=names.NO_PROVISIONER)
    world.capacity(NODE, "10Gi")
    return world


def decided(world: World, *claims: str) -> Binding:
    """The binding of a pod with these claims."""
    pod = world.pod("p", claims=list(claims))
    decision = world.cycle.decide(compile_ask(pod))
    assert isinstance(decision, SchedulingDecision)
    return Binding(pod, decision, world.cluster.columns.labels[0])


def made(world: World, claim: str = "c", *, node: str = NODE) -> None:
    """The claim gets its volume."""
    world.volume(f"pv-{claim}", node=node, phase="Bound", claim=claim)
    world.bound_claim(claim, f"pv-{claim}")


def test_one_patch_has_all(stage: Any) -> None:
    stage.claim("c")
    binding = decided(stage, "c")

    assert claim_patch(binding.plan.made[0], "n" * 70, binding.pod) == {
        "metadata": {
            "annotations": {
                "volume.kubernetes.io/selected-node": "n" * 70,
                "volume.kubernetes.io/storage-provisioner": names.DRIVER,
                "volume.beta.kubernetes.io/storage-provisioner": names.DRIVER,
            },
            "labels": {"tonnage.dev/node": names.label_value("n" * 70)},
        }
    }


def test_an_ephemeral_claim_without_siblings_is_told_so(stage: Any) -> None:
    for name in ("a", "b"):
        stage.claim(f"p-{name}", owner="p", uid=f"uid-of-{name}")

    def notes(pod: Any) -> Any:
        decision = stage.cycle.decide(compile_ask(pod))
        return claim_patch(decision.plan.made[0], NODE, pod)["metadata"]["annotations"]

    assert notes(stage.pod("p", ephemeral=["a"]))[names.SINGLE_CLAIM] == "uid-of-a"
    assert names.SINGLE_CLAIM not in notes(stage.pod("p", ephemeral=["a", "b"]))
    stage.claim("plain")
    assert names.SINGLE_CLAIM not in notes(stage.pod("p", ephemeral=["a"], claims=["plain"]))


def test_patch_of_a_volume(stage: Any) -> None:
    claim = stage.claim("c", storageClassName="disks")
    free = stage.volume("free", node=NODE, storageClassName="disks")
    patch = claim_reference(free, claim)
    assert patch["metadata"] == {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}
    assert patch["spec"]["claimRef"]["uid"] == "uid-c"

    pointed = stage.volume("pointed", node=NODE, storageClassName="disks", claim="c")
    assert "metadata" not in claim_reference(pointed, claim)  # a person pointed it there
    ref = {"namespace": "default", "name": "c", "uid": "uid-c"}
    assert claim_reference(stage.volume("done", claimRef=ref), claim) == {}


def test_done_when_bound(stage: Any) -> None:
    stage.claim("c")
    binding = decided(stage, "c")
    stage.claim("c", annotations=SENT)
    assert binding.look(stage.objects) is False

    stage.bound_claim("c", "pv-c")
    assert binding.look(stage.objects) is False  # the volume's watch is slower
    made(stage)

    assert binding.look(stage.objects) is True


def test_what_was_before_our_write_says_nothing(stage: Any) -> None:
    old = stage.claim("c")
    binding = decided(stage, "c")
    binding.sent["uid-c"] = int(old.metadata.resource_version) + 1

    assert binding.look(stage.objects) is False


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda w: w.claim("c"), 'selectedNode annotation reset for PVC "c"', id="reset"),
        pytest.param(
            lambda w: w.claim("c", annotations={names.SELECTED_NODE: "node-2"}), 'provisioning failed for PVC "c"',
            id="other node",
        ),
        pytest.param(
            lambda w: w.objects.claims.remove("default/c"), 'persistentvolumeclaim "c" not found', id="deleted"
        ),
        pytest.param(
            lambda w: w.claim("c", annotations=SENT, uid="another"), 'persistentvolumeclaim "c" not found', id="replaced"
        ),
        pytest.param(
            lambda w: made(w, node="node-2"),
            'pv "pv-c" node affinity doesn\'t match node "node-1": no matching NodeSelectorTerms', id="elsewhere",
        ),
    ],
)  # fmt: skip
async def test_waits_end_with_an_error(stage: Any, change: Any, message: str) -> None:
    stage.claim("c")
    binding = decided(stage, "c")
    stage.claim("c", annotations=SENT)
    waits = BindingWaits(stage.objects)
    waiting = asyncio.ensure_future(waits.wait(binding))
    await asyncio.sleep(0)
    change(stage)
    waits.changed("default/c")

    with pytest.raises(PreconditionError) as raised:
        await waiting
    assert str(raised.value) == message
    assert isinstance(raised.value, RescheduledError) == ("reset" in message)
    assert not waits._by_claim
    assert not waits._by_pod


async def test_wait_ends_with_the_pod(stage: Any) -> None:
    stage.claim("c")
    binding = decided(stage, "c")
    stage.claim("c", annotations=SENT)
    waits = BindingWaits(stage.objects)
    waiting = asyncio.ensure_future(waits.wait(binding))
    await asyncio.sleep(0)
    waits.pod_gone("somebody-else")
    waits.pod_gone("uid-p")

    with pytest.raises(PreconditionError, match="pod does not exist any more"):
        await waiting


async def test_two_pods_wait_for_one_claim(stage: Any) -> None:
    stage.claim("c")
    first, second = decided(stage, "c"), decided(stage, "c")
    second.pod = stage.pod("q", claims=["c"])
    stage.claim("c", annotations=SENT)
    waits = BindingWaits(stage.objects)
    waiting = [asyncio.ensure_future(waits.wait(binding)) for binding in (first, second)]
    await asyncio.sleep(0)
    made(stage)
    waits.changed("default/c")

    assert await asyncio.gather(*waiting) == [None, None]


def test_sent_back_counts_when_siblings_have_made_up_their_minds(stage: Any) -> None:
    stage.claim("a")
    stage.claim("b")
    binding = decided(stage, "a", "b")
    stage.claim("a")
    stage.claim("b", annotations=SENT)
    assert binding.look(stage.objects) is False

    made(stage, "b")

    with pytest.raises(RescheduledError, match='PVC "a"'):
        binding.look(stage.objects)


def test_found_volumes(stage: Any) -> None:
    claim = stage.claim("c", storageClassName="disks")
    free = stage.volume("free", node=NODE, storageClassName="disks")
    binding = decided(stage, "c")
    with pytest.raises(PreconditionError, match='ClaimRef got reset for pv "free"'):
        binding.look(stage.objects)
    binding.sent[free.metadata.uid] = int(free.metadata.resource_version) + 1
    assert binding.look(stage.objects) is False

    ref = {"namespace": "default", "name": "c", "uid": claim.metadata.uid}
    stage.volume("free", node=NODE, storageClassName="disks", claimRef=ref)
    assert binding.look(stage.objects) is False
    stage.bound_claim("c", "free", storageClassName="disks")
    assert binding.look(stage.objects) is True

    stage.objects.volumes.remove("free")
    with pytest.raises(PreconditionError, match='persistentvolume "free" not found'):
        binding.look(stage.objects)
