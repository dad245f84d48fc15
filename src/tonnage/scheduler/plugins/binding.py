"""PreBind: writes a pod's claims and PVs, and waits until they are bound.

Source: k/k volumebinding/binder.go (bindAPIUpdate, checkBindings), with its error texts. There is no polling: an event
of a claim or PV causes the next check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tonnage.api import matching, names
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS
from tonnage.api.pods import Pod
from tonnage.errors import Precondition
from tonnage.scheduler.framework.plugin import SchedulingDecision, Unbound
from tonnage.scheduler.framework.pod_info import claim_uses
from tonnage.scheduler.framework.storage_objects import StorageObjects, reach_of

BOUND, AWAITED, BACK = "bound", "awaited", "back"
POD_GONE = "pod does not exist any more"


class Withdrawn(Precondition):
    """The node's agent rescheduled a claim: insufficient storage there."""


def claim_patch(unbound: Unbound, node: str, pod: Pod) -> dict[str, Any]:
    """Return the patch of a claim's selected-node, label and provisioner.

    It marks an ephemeral single claim, so that its agent need not read the pod.
    """
    provisioner = unbound.storage_class.provisioner
    notes = {
        names.SELECTED_NODE: node,
        names.STORAGE_PROVISIONER: provisioner,
        names.BETA_STORAGE_PROVISIONER: provisioner,
    }
    if [use.ephemeral for use in claim_uses(pod)] == [True]:
        notes[names.SINGLE_CLAIM] = unbound.claim.metadata.uid
    return {"metadata": {"annotations": notes, "labels": {names.NODE_LABEL: names.label_value(node)}}}


def volume_patch(volume: PersistentVolume, claim: PersistentVolumeClaim) -> dict[str, Any]:
    """Return the merge patch of a PV's claimRef; empty if it is set.

    A PV that a person assigned to the claim gets the missing uid, but not the binder's mark.
    """
    if volume.spec.claim_ref is not None and volume.spec.claim_ref.uid == claim.metadata.uid:
        return {}
    ref = {
        **CLAIMS.head(),
        "namespace": claim.metadata.namespace,
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
    }
    patch: dict[str, Any] = {"spec": {"claimRef": ref}}
    if volume.spec.claim_ref is None:
        patch["metadata"] = {"annotations": {names.BOUND_BY_CONTROLLER: "yes"}}
    return patch


class Binding:
    """Decision of a pod whose volumes are being bound.

    sent: claim uid -> resourceVersion that our write returned; older versions in a cache are ignored.
    """

    def __init__(self, pod: Pod, decision: SchedulingDecision, labels: Mapping[str, str]) -> None:
        self.pod = pod
        self.node = decision.node
        self.plan = decision.plan
        self.sent: dict[str, int] = {}
        self._labels = labels

    def claim_keys(self) -> list[str]:
        """Keys of the claims to wait for."""
        return [claim.key for claim, _ in self.plan.found] + [made.claim.key for made in self.plan.made]

    def look(self, objects: StorageObjects) -> bool:
        """Return whether all volumes are bound.

        A rescheduled claim counts when its whole group is decided: the claims are rescheduled one after the other, and
        a decision in between would be pinned by those that still have the node.

        Raises: Precondition, with Kubernetes' text, when it cannot succeed.
        """
        found = [self._found(objects, claim, volume) for claim, volume in self.plan.found]
        made = [self._made(objects, made.claim) for made in self.plan.made]
        if BACK in made and AWAITED not in made:
            claim = self.plan.made[made.index(BACK)].claim
            raise Withdrawn(f'selectedNode annotation reset for PVC "{claim.metadata.name}"')
        return all(found) and all(fate == BOUND for fate in made)

    def _claim(self, objects: StorageObjects, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        seen = objects.claims.get(claim.key)
        if seen is None or seen.metadata.uid != claim.metadata.uid:
            raise Precondition(f'persistentvolumeclaim "{claim.metadata.name}" not found')
        return seen

    def _found(self, objects: StorageObjects, claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
        seen, current = self._claim(objects, claim), objects.volumes.get(volume.metadata.name)
        name = volume.metadata.name
        if current is None:
            raise Precondition(f'persistentvolume "{name}" not found')
        if _version(current) < self.sent.get(volume.metadata.uid, 0):
            return False
        self._check_reach(current)
        if current.spec.claim_ref is None or current.spec.claim_ref.uid != claim.metadata.uid:
            raise Precondition(f'ClaimRef got reset for pv "{name}"')
        return matching.is_bound(seen)

    def _made(self, objects: StorageObjects, claim: PersistentVolumeClaim) -> str:
        """Return the state of a claim with selected node: BOUND, AWAITED or BACK."""
        seen = self._claim(objects, claim)
        if _version(seen) < self.sent.get(claim.metadata.uid, 0):
            return AWAITED
        if not matching.is_bound(seen):
            selected = seen.metadata.annotations.get(names.SELECTED_NODE)
            if selected not in (None, self.node):
                raise Precondition(f'provisioning failed for PVC "{claim.metadata.name}"')
            return BACK if selected is None else AWAITED
        volume = objects.volumes.get(seen.spec.volume_name)
        if volume is None:  # the claim's watch was faster than the PV's
            return AWAITED
        self._check_reach(volume)
        return BOUND

    def _check_reach(self, volume: PersistentVolume) -> None:
        if not reach_of(volume).matches(self._labels, self.node):
            name = volume.metadata.name
            raise Precondition(
                f'pv "{name}" node affinity doesn\'t match node "{self.node}": no matching NodeSelectorTerms'
            )


def _version(obj: PersistentVolumeClaim | PersistentVolume) -> int:
    return int(obj.metadata.resource_version or 0)


class BindingWaits:
    """Bindings that wait for events of claims and PVs."""

    def __init__(self, objects: StorageObjects) -> None:
        self._objects = objects
        self._by_claim: dict[str, list[tuple[Binding, asyncio.Future[None]]]] = {}
        self._by_pod: dict[str, asyncio.Future[None]] = {}

    async def wait(self, binding: Binding) -> None:
        """Wait until all volumes are bound.

        Raises: Precondition (see Binding.look), also when the pod is gone.
        """
        if binding.look(self._objects):
            return
        future = asyncio.get_running_loop().create_future()
        uid, keys = binding.pod.metadata.uid, binding.claim_keys()
        self._by_pod[uid] = future
        for key in keys:
            self._by_claim.setdefault(key, []).append((binding, future))
        try:
            await future
        finally:
            del self._by_pod[uid]
            for key in keys:
                left = [wait for wait in self._by_claim[key] if wait[1] is not future]
                if left:
                    self._by_claim[key] = left
                else:
                    del self._by_claim[key]

    def changed(self, claim: str) -> None:
        """Handle a changed or deleted claim, or PV of the claim."""
        for binding, future in self._by_claim.get(claim, ()):
            if future.done():
                continue
            try:
                if binding.look(self._objects):
                    future.set_result(None)
            except Precondition as failure:
                future.set_exception(failure)

    def pod_gone(self, uid: str) -> None:
        """Handle a deleted pod."""
        future = self._by_pod.get(uid)
        if future is not None and not future.done():
            future.set_exception(Precondition(POD_GONE))
