"""Claims of a StatefulSet's pods: their owners by the retention policy, and what a new pod waits for."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.base.errors import PreconditionError
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, STATEFUL_SETS
from tonnage.kubernetes.api.meta import ObjectMeta, OwnerReference
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import Retention, StatefulSet, StatefulSetSpec
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.podcontrol.context import ControllerContext
from tonnage_box.controllers.workloads.statefulset import Claims, claim_names, is_stale, owners

POD = Pod(metadata=ObjectMeta(name="web-0", namespace="default", uid="pod"))
OF_POD = OwnerReference(api_version="v1", kind="Pod", name="web-0", uid="pod", controller=True)
OF_SET = OwnerReference(api_version="apps/v1", kind="StatefulSet", name="web", uid="set", controller=True)
STRANGER = OwnerReference(api_version="v1", kind="ConfigMap", name="x", uid="x")
TEMPLATE = {
    "metadata": {"name": "data", "labels": {"l": "1"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def stateful(deleted: str = "Retain", scaled: str = "Retain") -> StatefulSet:
    retention = Retention(when_deleted=deleted, when_scaled=scaled)
    spec = StatefulSetSpec(persistent_volume_claim_retention_policy=retention, volume_claim_templates=[TEMPLATE])
    return StatefulSet(metadata=ObjectMeta(name="web", namespace="default", uid="set"), spec=spec)


@pytest.mark.parametrize(
    ("policy", "wanted", "before", "after"),
    [
        (("Retain", "Retain"), True, [], None),
        (("Retain", "Retain"), True, [OF_SET], []),
        (("Delete", "Retain"), True, [], ["set"]),
        (("Delete", "Retain"), True, [OF_SET], None),
        (("Delete", "Delete"), True, [OF_POD], ["set"]),
        (("Delete", "Delete"), False, [OF_SET], ["pod"]),
        (("Retain", "Delete"), False, [], ["pod"]),
        (("Retain", "Delete"), True, [OF_POD], []),
        (("Delete", "Retain"), True, [STRANGER], ["x", "set"]),
    ],
)
def test_owners_follow_the_policy(
    policy: tuple[str, str], wanted: bool, before: list[OwnerReference], after: list[str] | None
) -> None:
    found = owners(stateful(*policy), POD, before, wanted=wanted)
    assert (None if found is None else [one["uid"] for one in found]) == after


def test_a_claim_that_another_controls_is_left_alone() -> None:
    other = OwnerReference(api_version="v1", kind="ConfigMap", name="x", uid="x", controller=True)
    assert owners(stateful("Delete"), POD, [other], wanted=True) is None


def test_claims_are_named_after_template_and_pod() -> None:
    assert claim_names(stateful(), "web-3") == {"data": "data-web-3"}


async def test_a_pod_gets_its_claims_before_it_is_made(
    kube: Client, informers: Informers, events: EventRecorder
) -> None:
    claims = Claims(ControllerContext(kube, informers, events))
    await claims.ensure(stateful("Delete"), "web-0")
    await claims.ensure(stateful("Delete"), "web-0")
    made: Any = await kube.get(CLAIMS, "data-web-0", "default")
    assert made.metadata.labels == {"l": "1"}
    assert [one.uid for one in made.metadata.owner_references] == ["set"]
    assert made.metadata.owner_references[0].kind == STATEFUL_SETS.kind
    await claims.set_owners(stateful("Retain", "Delete"), POD, wanted=False)
    made = await kube.get(CLAIMS, "data-web-0", "default")
    assert [one.uid for one in made.metadata.owner_references] == ["pod"]
    with pytest.raises(PreconditionError, match="of an earlier pod web-0 is being deleted"):
        await claims.ensure(stateful("Retain", "Delete"), "web-0")


def test_a_claim_of_an_earlier_pod_is_stale() -> None:
    assert is_stale(PersistentVolumeClaim(metadata=ObjectMeta(owner_references=[OF_POD])), "web-0")
    assert is_stale(PersistentVolumeClaim(metadata=ObjectMeta(deletion_timestamp="2026-01-01T00:00:00Z")), "web-0")
    assert not is_stale(PersistentVolumeClaim(metadata=ObjectMeta(owner_references=[OF_SET])), "web-0")
