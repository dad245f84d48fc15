"""StatefulSet controller: numbered pods, each with its own claims (pkg/controller/statefulset).

Watched: StatefulSets, their pods, and deleted claims (a new pod may wait for that). The next step is computed as a plan
without I/O.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, CONTROLLER_REVISIONS, PODS, STATEFUL_SETS, Kind
from tonnage.api.meta import KubeObject, OwnerReference, to_builtins
from tonnage.api.pods import Pod
from tonnage.api.workloads import ControllerRevision, StatefulSet
from tonnage.box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage.box.controllers.podcontrol.expectations import Dependents
from tonnage.box.controllers.podcontrol.history import RevisionHistory, revision_of, template_of
from tonnage.box.controllers.podcontrol.pod_control import PodControl, in_dying_namespace
from tonnage.box.controllers.podcontrol.pod_status import next_available
from tonnage.box.controllers.podcontrol.pod_template import owner_reference, pod_of
from tonnage.box.controllers.podcontrol.ref_manager import owner_keys
from tonnage.box.controllers.workloads import statefulset_plan as plans
from tonnage.errors import ApiAlreadyExistsError, ApiError, PreconditionError
from tonnage.kube.client import refer
from tonnage.kube.controller import Reconciler
from tonnage.kube.object_write import patch_object, write_status

NAME = "statefulset"


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
    """Writes the claims of a StatefulSet's pods: `<template>-<pod>`, and their retention policy (KEP-1847).

    A claim's owner references say when the garbage collector deletes it. Owned by the set, it is deleted with the set;
    owned by a pod that is no longer needed, with that pod; without owner it stays.
    """

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


class StatefulSetController(Reconciler[str]):
    """Creates, updates and deletes the pods of each StatefulSet. Keys are `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._clock = context.client, context.clock
        informers = context.informers
        self._sets = informers.of(STATEFUL_SETS).cache
        self._control = PodControl(context, STATEFUL_SETS, fits=_is_member)
        self._claims = Claims(context)
        self._revisions = RevisionHistory(context, STATEFUL_SETS)
        super().__init__(NAME, backoff=Backoff(initial=0.005, maximum=60.0))
        self.watch(context.informers.of(STATEFUL_SETS), own_key)
        # No revision is made before all that are there are known.
        self.watch(informers.of(CONTROLLER_REVISIONS), lambda old, new: ())
        concerned = owner_keys(STATEFUL_SETS, self._sets, lambda s: s.spec.selector)
        self.watch(informers.of(PODS), concerned)
        self.watch(informers.of(CLAIMS), self._claim_gone)

    async def reconcile(self, key: str) -> float | None:
        """Do the next step, then write the status. Idempotent. Raises TonnageError."""
        stateful = self._sets.get(key)
        if stateful is None:
            return None
        pods = await self._control.claim(stateful, stateful.spec.selector)
        if stateful.metadata.deleting:
            return None
        update, collisions = await self._revisions.ensure(stateful)
        shown = stateful.status.current_revision
        current = next((r for r in self._revisions.of(stateful) if r.metadata.name == shown), update)
        pair = plans.SetRevisions(current.metadata.name, update.metadata.name)
        waits: Exception | None = None
        try:
            await self._do(stateful, pods, {pair.current: current, pair.update: update}, pair)
        except (ApiError, PreconditionError) as failure:
            waits = failure
        pods = self._control.owned(stateful.metadata.uid)
        wanted = plans.status(stateful, pods, pair, self._clock.time(), collisions)
        await write_status(self._client, STATEFUL_SETS, stateful, wanted)
        if isinstance(waits, ApiError) and not in_dying_namespace(waits):
            raise waits
        await self._revisions.trim(stateful, {pair.current, pair.update, *map(revision_of, pods)})
        return next_available(pods, stateful.spec.min_ready_seconds, self._clock.time())

    async def _do(
        self,
        stateful: StatefulSet,
        pods: Sequence[Pod],
        revisions: dict[str, ControllerRevision],
        pair: plans.SetRevisions,
    ) -> None:
        wanted = plans.ordinals(stateful)
        for number, pod in plans.numbered(stateful, pods).items():
            await self._claims.set_owners(stateful, pod, wanted=number in wanted)
        todo = plans.plan(stateful, pods, pair, self._clock.time())
        waiting: PreconditionError | None = None
        for number, revision in todo.create:
            try:
                await self._create(stateful, number, revisions[revision])
            except PreconditionError as failure:  # its claim has yet to go; the others need not wait
                waiting = failure
        await self._control.delete_many(stateful, todo.delete)
        if waiting is not None:
            raise waiting

    async def _create(self, stateful: StatefulSet, number: int, revision: ControllerRevision) -> None:
        body = pod_body(stateful, number, revision)
        await self._claims.ensure(stateful, body["metadata"]["name"])
        await self._control.create(stateful, body)

    def _claim_gone(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[str]:
        """A pod may have waited for its predecessor's claim to go."""
        if old is None or new is not None:
            return
        for stateful in self._sets:
            meta = stateful.metadata
            if meta.namespace == old.metadata.namespace and any(
                plans.ordinal(prefix, old.metadata.name) is not None
                for prefix in claim_names(stateful, meta.name).values()
            ):
                yield stateful.key


def _is_member(stateful: KubeObject, pod: Pod) -> bool:
    return plans.ordinal(stateful.metadata.name, pod.metadata.name) is not None


def pod_body(stateful: StatefulSet, number: int, revision: ControllerRevision) -> dict[str, Any]:
    """The pod of a number and revision, to be created: its name, its host name, its claims."""
    name = f"{stateful.metadata.name}-{number}"
    owner = owner_reference(STATEFUL_SETS, stateful)
    body = pod_of(template_of(revision), owner, name=name)
    body["metadata"].setdefault("labels", {}).update(
        {
            names.CONTROLLER_REVISION_HASH: revision.metadata.name,
            names.POD_NAME: name,
            names.POD_INDEX: str(number),
        }
    )
    spec = body["spec"]
    spec["hostname"] = name
    if stateful.spec.service_name:
        spec["subdomain"] = stateful.spec.service_name
    claims = claim_names(stateful, name)
    volumes = [copy.deepcopy(v) for v in spec.get("volumes") or () if v["name"] not in claims]
    volumes += [{"name": v, "persistentVolumeClaim": {"claimName": claim}} for v, claim in claims.items()]
    if volumes:
        spec["volumes"] = volumes
    return body
