"""Claims of a StatefulSet's pods: `<template>-<pod>`, and their retention policy (KEP-1847).

A claim's owner references say when the garbage collector deletes it. Owned by the set, it is deleted with the set;
owned
by a pod that is no longer needed, with that pod; without owner it stays.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, PODS, STATEFUL_SETS, Kind
from tonnage.api.meta import KubeObject, OwnerReference, to_builtins
from tonnage.api.pods import Pod
from tonnage.api.workloads import StatefulSet
from tonnage.box.controllers.podcontrol.context import ControllerContext
from tonnage.box.controllers.podcontrol.expectations import Dependents
from tonnage.box.controllers.podcontrol.pod_template import owner_reference
from tonnage.errors import ApiAlreadyExistsError, PreconditionError
from tonnage.kube.client import refer
from tonnage.kube.object_write import patch_object

DELETE = "Delete"


def claim_names(stateful: StatefulSet, pod_name: str) -> dict[str, str]:
    """Template -> claim, for one pod."""
    templates = (t["metadata"]["name"] for t in stateful.spec.volume_claim_templates)
    return {name: f"{name}-{pod_name}" for name in templates}


def claim_of(stateful: StatefulSet, template: dict[str, Any], name: str) -> dict[str, Any]:
    """A claim of the template, to be created. It has the labels that the set selects by."""
    meta = template.get("metadata") or {}
    made: dict[str, Any] = {
        "name": name,
        "labels": {**(meta.get("labels") or {}), **stateful.spec.selector.match_labels},
    }
    if meta.get("annotations"):
        made["annotations"] = dict(meta["annotations"])
    if stateful.spec.persistent_volume_claim_retention_policy.when_deleted == DELETE:
        made["ownerReferences"] = [owner_reference(STATEFUL_SETS, stateful)]
    return {"metadata": made, "spec": copy.deepcopy(template.get("spec") or {})}


def owners(
    stateful: StatefulSet, pod: Pod, refs: Sequence[OwnerReference], *, wanted: bool
) -> list[dict[str, Any]] | None:
    """The owners that a claim of the pod is to have, None when it has them. wanted: the pod's number is.

    A claim that somebody else controls is left alone.
    """
    set_uid, pod_uid = stateful.metadata.uid, pod.metadata.uid
    ours = [ref for ref in refs if ref.uid in (set_uid, pod_uid) or _is_pod(ref, pod.metadata.name)]
    others = [ref for ref in refs if ref not in ours]
    if any(ref.controller for ref in others):
        return None
    policy = stateful.spec.persistent_volume_claim_retention_policy
    want: KubeObject | None = None
    kind: Kind[Any] = STATEFUL_SETS
    if not wanted and policy.when_scaled == DELETE:
        want, kind = pod, PODS
    elif policy.when_deleted == DELETE:
        want = stateful
    if [ref.uid for ref in ours] == ([want.metadata.uid] if want is not None else []):
        return None
    kept = [to_builtins(ref) for ref in others]
    return kept if want is None else [*kept, owner_reference(kind, want)]


def is_stale(claim: PersistentVolumeClaim, pod_name: str) -> bool:
    """Whether the claim belongs to a deleted earlier pod of that name; a new pod must not use it."""
    return claim.metadata.deleting or any(_is_pod(ref, pod_name) for ref in claim.metadata.owner_references)


def _is_pod(ref: OwnerReference, name: str) -> bool:
    return (ref.api_version, ref.kind, ref.name) == ("v1", "Pod", name)


class Claims:
    """Writes the claims of StatefulSets."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._events = context.client, context.events
        self._claims = Dependents(context.informers.of(CLAIMS))

    async def ensure(self, stateful: StatefulSet, pod_name: str) -> None:
        """Make the claims that a pod lacks, before it is made.

        Raises PreconditionError (a claim is still being deleted; that causes the next reconcile) and ApiError.
        """
        namespace = stateful.metadata.namespace
        for template in stateful.spec.volume_claim_templates:
            name = f"{template['metadata']['name']}-{pod_name}"
            found = self._claims.get(f"{namespace}/{name}")
            if found is None:
                await self._create(stateful, template, name)
            elif is_stale(found, pod_name):
                raise PreconditionError(f"claim {namespace}/{name} of an earlier pod {pod_name} is being deleted")

    async def _create(self, stateful: StatefulSet, template: dict[str, Any], name: str) -> None:
        about = refer(STATEFUL_SETS, stateful)
        body = claim_of(stateful, template, name)
        try:
            self._claims.wrote(await self._client.create(CLAIMS, body, stateful.metadata.namespace))
        except ApiAlreadyExistsError:  # made by hand beforehand, or our cache is behind: it is used as it is
            return
        self._events.normal(about, "SuccessfulCreate", f"Created claim: {name}")

    async def set_owners(self, stateful: StatefulSet, pod: Pod, *, wanted: bool) -> None:
        """Set owners of a pod's claims by the retention policy. Idempotent. Raises ApiError."""
        for name in claim_names(stateful, pod.metadata.name).values():
            claim = self._claims.get(f"{stateful.metadata.namespace}/{name}")
            if claim is None or claim.metadata.deleting:
                continue
            refs = owners(stateful, pod, claim.metadata.owner_references, wanted=wanted)
            if refs is not None:
                patch = {"metadata": {"ownerReferences": refs or None}}
                self._claims.wrote(await patch_object(self._client, CLAIMS, claim, patch))
