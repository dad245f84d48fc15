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
from tonnage.api.kinds import CLAIMS, CONTROLLER_REVISIONS, PODS, STATEFUL_SETS
from tonnage.api.meta import KubeObject
from tonnage.api.pods import Pod
from tonnage.api.workloads import ControllerRevision, StatefulSet
from tonnage.box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage.box.controllers.podcontrol.history import RevisionHistory, revision_of, template_of
from tonnage.box.controllers.podcontrol.pod_control import PodControl, in_dying_namespace
from tonnage.box.controllers.podcontrol.pod_status import next_available
from tonnage.box.controllers.podcontrol.pod_template import owner_reference, pod_of
from tonnage.box.controllers.podcontrol.ref_manager import owner_keys
from tonnage.box.controllers.workloads import statefulset_plan as plans
from tonnage.box.controllers.workloads.statefulset_claims import Claims, claim_names
from tonnage.errors import ApiError, PreconditionError
from tonnage.kube.controller import Reconciler
from tonnage.kube.object_write import write_status

NAME = "statefulset"


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
