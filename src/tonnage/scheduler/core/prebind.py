"""Getting a pod's volumes bound before the pod is: what is written, and when it has come true (PreBind).

Source: k/k volumebinding/binder.go (bindAPIUpdate, checkBindings), with its error texts.
Nothing is polled: whoever sees a claim or volume change tells, and the binding is looked at again.
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
from tonnage.scheduler.core.cycle import SchedulingDecision
from tonnage.scheduler.framework.pod_info import claim_uses
from tonnage.scheduler.framework.static_pvs import reach_of
from tonnage.scheduler.framework.storage_objects import StorageObjects
from tonnage.scheduler.plugins.volume_binding import Unbound

BOUND, AWAITED, BACK = "bound", "awaited", "back"
POD_GONE = "pod does not exist any more"


class Withdrawn(Precondition):
    """The node's agent sent a claim back: no room there after all."""


def claim_patch(unbound: Unbound, node: str, pod: Pod) -> dict[str, Any]:
    """Merge patch that sends a pod's claim to a node: for its provisioner, for the node's agent, for whoever looks.

    An ephemeral claim that has no siblings is told so, and its agent need not ask for the pod.
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
    """Merge patch that gives a volume to a claim; empty when the volume says so already.

    A volume that a person pointed to the claim gets the missing uid, but not the mark of the binder.
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
    """A pod's decision on its way. sent: claim uid -> resourceVersion that our write returned; what a cache still
    shows from before that says nothing."""

    def __init__(self, pod: Pod, decision: SchedulingDecision, labels: Mapping[str, str]) -> None:
        self.pod = pod
        self.node = decision.node
        self.plan = decision.plan
        self.sent: dict[str, int] = {}
        self._labels = labels

    def claim_keys(self) -> list[str]:
        """Keys of the claims that are waited for."""
        return [claim.key for claim, _ in self.plan.found] + [made.claim.key for made in self.plan.made]

    def look(self, objects: StorageObjects) -> bool:
        """Whether all is bound. Raises Precondition, with Kubernetes' text, when it will not come true.

        A claim that was sent back counts when its siblings have made up their minds too: they are sent back one after
        the other, and a decision in between would be pinned to the node by those that still go there.
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
        """What became of a claim that was sent: BOUND, AWAITED or BACK."""
        seen = self._claim(objects, claim)
        if _version(seen) < self.sent.get(claim.metadata.uid, 0):
            return AWAITED
        if not matching.is_bound(seen):
            selected = seen.metadata.annotations.get(names.SELECTED_NODE)
            if selected not in (None, self.node):
                raise Precondition(f'provisioning failed for PVC "{claim.metadata.name}"')
            return BACK if selected is None else AWAITED
        volume = objects.volumes.get(seen.spec.volume_name)
        if volume is None:  # the claim's watch was faster than the volume's
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
    """Bindings that wait for changes of claims and volumes."""

    def __init__(self, objects: StorageObjects) -> None:
        self._objects = objects
        self._by_claim: dict[str, list[tuple[Binding, asyncio.Future[None]]]] = {}
        self._by_pod: dict[str, asyncio.Future[None]] = {}

    async def wait(self, binding: Binding) -> None:
        """Return when all volumes are bound. Raises Precondition (see Binding.look), also when the pod is gone."""
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
        """A claim, or the volume that points to it, has changed or is gone."""
        for binding, future in self._by_claim.get(claim, ()):
            if future.done():
                continue
            try:
                if binding.look(self._objects):
                    future.set_result(None)
            except Precondition as failure:
                future.set_exception(failure)

    def pod_gone(self, uid: str) -> None:
        """The pod was deleted."""
        future = self._by_pod.get(uid)
        if future is not None and not future.done():
            future.set_exception(Precondition(POD_GONE))
