"""Deployment controller: replaces ReplicaSets step by step (pkg/controller/deployment).

Watched: Deployments and ReplicaSets; pods only for Recreate, which waits for the last old pod. Each reconcile does one
step, whose writes cause the next reconcile. Sizes and status are computed without I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import ApiAlreadyExistsError, ApiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import DEPLOYMENTS, PODS, REPLICA_SETS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import Deployment, DeploymentCondition, ReplicaSet
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import delete_object, patch_object, write_status
from tonnage_box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage_box.controllers.podcontrol.expectations import Dependents, controller_of
from tonnage_box.controllers.podcontrol.pod_control import in_dying_namespace
from tonnage_box.controllers.podcontrol.ref_manager import Adopter, owner_keys
from tonnage_box.controllers.workloads import deployment_plan as plans

log = logging.getLogger(__name__)
NAME = "deployment"


@dataclass
class _Rollout:
    """One reconcile of a Deployment. new: the ReplicaSet of its template, if there is one; notes: conditions to add."""

    deployment: Deployment
    sets: Sequence[ReplicaSet]
    new: ReplicaSet | None
    notes: list[DeploymentCondition] = field(default_factory=list)

    @property
    def olds(self) -> list[ReplicaSet]:
        """The ReplicaSets of other templates."""
        return _without(self.sets, self.new)


class DeploymentController(Reconciler[str]):
    """Rolls out the template of each Deployment. Keys are `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._events, self._clock = context.client, context.events, context.clock
        informers = context.informers
        sets, pods = informers.of(REPLICA_SETS), informers.of(PODS)
        self._deployments, self._set_cache = informers.of(DEPLOYMENTS).cache, sets.cache
        self._sets, self._pods = Dependents(sets), Dependents(pods)
        self._adopter = Adopter(context.client, REPLICA_SETS, DEPLOYMENTS, self._sets)
        super().__init__(NAME, backoff=Backoff(initial=0.005, maximum=120.0))
        self.watch(context.informers.of(DEPLOYMENTS), own_key)
        self.watch(sets, owner_keys(DEPLOYMENTS, self._deployments, lambda d: d.spec.selector))
        self.watch(pods, self._pod_gone)

    async def reconcile(self, key: str) -> float | None:
        """Do the next step of a Deployment, then write its status. Idempotent. Raises: TonnageError."""
        deployment = self._deployments.get(key)
        if deployment is None:
            return None
        sets = await self._adopter.claim(deployment, deployment.spec.selector)
        rollout = _Rollout(deployment, sets, plans.find_new(deployment, sets))
        if not deployment.metadata.deleting:
            await self._step(rollout)
            rollout.sets = self._sets.owned(deployment.metadata.uid)
        return await self._sync_status(rollout)

    async def _step(self, rollout: _Rollout) -> None:
        """Towards the wanted state."""
        deployment = rollout.deployment
        self._note_pause(rollout)
        if deployment.spec.paused or self._resized(deployment, rollout.sets):
            await self._resize(rollout)
        elif deployment.spec.strategy.type == plans.RECREATE:
            await self._recreate(rollout)
        else:
            await self._roll(rollout)

    # rolling update and recreate

    async def _roll(self, rollout: _Rollout) -> None:
        deployment, bounds = rollout.deployment, plans.bounds_of(rollout.deployment)
        sizes = [plans.size_of(one) for one in rollout.olds]
        by_name = {one.metadata.name: one for one in rollout.olds}
        new = await self._ensure_new(rollout, plans.new_size(bounds, plans.Size("", 0, 0), sizes))
        wanted = plans.new_size(bounds, plans.size_of(new), sizes)
        if wanted != new.spec.replicas:
            rollout.new = await self._scale(deployment, new, wanted)
            return
        for name, size in plans.old_sizes(bounds, plans.size_of(new), sizes).items():
            await self._scale(deployment, by_name[name], size)

    async def _recreate(self, rollout: _Rollout) -> None:
        """Delete all old pods; create new ones only when the last is gone."""
        deployment, olds = rollout.deployment, rollout.olds
        shrinking = [one for one in olds if one.spec.replicas]
        for one in shrinking:
            await self._scale(deployment, one, 0)
        old_pods = [pod for one in olds for pod in self._pods.owned(one.metadata.uid) if not pod.terminated]
        if not shrinking and not old_pods:
            new = await self._ensure_new(rollout, deployment.spec.replicas)
            rollout.new = await self._scale(deployment, new, deployment.spec.replicas)

    async def _ensure_new(self, rollout: _Rollout, replicas: int) -> ReplicaSet:
        """The new ReplicaSet is there and carries the next revision, and so does the Deployment."""
        deployment, new = rollout.deployment, rollout.new
        revision = plans.last_revision(rollout.olds) + 1
        if new is None:
            new = await self._create(rollout, revision, replicas)
        else:
            new = await self._refresh(deployment, new, revision)
            if plans.progressing(deployment) is None and plans.watched(deployment):
                found = f'Found new replica set "{new.metadata.name}"'
                rollout.notes.append(plans.note("Progressing", "FoundNewReplicaSet", found, self._clock.time()))
        rollout.new = new
        shown = new.metadata.annotations.get(names.REVISION, "")
        if shown and deployment.metadata.annotations.get(names.REVISION) != shown:
            patch = {"metadata": {"annotations": {names.REVISION: shown}}}
            await patch_object(self._client, DEPLOYMENTS, deployment, patch, guarded=False)
        return new

    async def _create(self, rollout: _Rollout, revision: int, replicas: int) -> ReplicaSet:
        deployment = rollout.deployment
        body = plans.new_set(deployment, revision, replicas)
        name = body["metadata"]["name"]
        try:
            made = await self._client.create(REPLICA_SETS, body, deployment.metadata.namespace)
        except ApiAlreadyExistsError:
            return await self._collided(deployment, name)
        except ApiError as failure:
            if not in_dying_namespace(failure):
                await self._rejected(deployment, name, failure)
            raise
        if replicas:
            self._emit_scaled(deployment, name, 0, replicas)
        words = f'Created new replica set "{name}"'
        rollout.notes.append(plans.note("Progressing", "NewReplicaSetCreated", words, self._clock.time()))
        return self._sets.wrote(made)

    async def _collided(self, deployment: Deployment, name: str) -> ReplicaSet:
        """The name is taken: by our own set that the cache has yet to show, or by another: then count, and try anew."""
        found = await self._client.get(REPLICA_SETS, name, deployment.metadata.namespace)
        if plans.find_new(deployment, [found]) and found.metadata.controller_uid() == deployment.metadata.uid:
            return self._sets.wrote(found)
        count = (deployment.status.collision_count or 0) + 1
        log.info("replica set's name is taken deployment=%s name=%s collisions=%d", deployment.key, name, count)
        await write_status(self._client, DEPLOYMENTS, deployment, {"collisionCount": count})
        raise ApiAlreadyExistsError(
            f"replica set {name} of Deployment {deployment.key} is another one: a new name is next"
        )

    async def _rejected(self, deployment: Deployment, name: str, failure: ApiError) -> None:
        words = f'Failed to create new replica set "{name}": {failure}'
        self._events.warning(refer(DEPLOYMENTS, deployment), "ReplicaSetCreateError", words)
        if plans.watched(deployment):
            note = plans.note("Progressing", "ReplicaSetCreateError", words, self._clock.time(), holds=False)
            await self._write(_Rollout(deployment, self._sets.owned(deployment.metadata.uid), None, [note]))

    async def _refresh(self, deployment: Deployment, new: ReplicaSet, revision: int) -> ReplicaSet:
        """A ReplicaSet that is there already gets the Deployment's annotations, its revision, and minReadySeconds."""
        annotations = dict(plans.set_annotations(deployment, new, revision))
        seconds = deployment.spec.min_ready_seconds
        if annotations == new.metadata.annotations and seconds == new.spec.min_ready_seconds:
            return new
        patch = {"metadata": {"annotations": annotations}, "spec": {"minReadySeconds": seconds}}
        return await self._patch(new, patch)

    # scaling

    def _resized(self, deployment: Deployment, sets: Sequence[ReplicaSet]) -> bool:
        """Whether the wanted number has changed since the ReplicaSets with pods were scaled."""
        noted = [one.metadata.annotations.get(names.DESIRED_REPLICAS) for one in sets if one.spec.replicas]
        return any(text is not None and text != str(deployment.spec.replicas) for text in noted)

    async def _resize(self, rollout: _Rollout) -> None:
        deployment, new, sets = rollout.deployment, rollout.new, rollout.sets
        active = [one for one in sets if one.spec.replicas]
        latest = active or ([new] if new is not None else list(sets[-1:]))
        if len(latest) <= 1:
            for one in latest:
                await self._scale(deployment, one, deployment.spec.replicas)
            return
        if new is not None and _is_saturated(deployment, new):
            for one in _without(active, new):
                await self._scale(deployment, one, 0)
            return
        if deployment.spec.strategy.type == plans.RECREATE:
            return
        bounds = plans.bounds_of(deployment)
        sizes = plans.proportional(bounds, [plans.size_of(one) for one in active], deployment.status.replicas)
        for one in active:
            await self._scale(deployment, one, sizes[one.metadata.name])

    async def _scale(self, deployment: Deployment, one: ReplicaSet, replicas: int) -> ReplicaSet:
        annotations = plans.size_annotations(deployment)
        if replicas == one.spec.replicas and annotations.items() <= one.metadata.annotations.items():
            return one
        scaled = await self._patch(one, {"metadata": {"annotations": annotations}, "spec": {"replicas": replicas}})
        if replicas != one.spec.replicas:
            self._emit_scaled(deployment, one.metadata.name, one.spec.replicas, replicas)
        return scaled

    async def _patch(self, one: ReplicaSet, patch: dict[str, Any]) -> ReplicaSet:
        return self._sets.wrote(await patch_object(self._client, REPLICA_SETS, one, patch))

    def _emit_scaled(self, deployment: Deployment, name: str, before: int, after: int) -> None:
        way = "up" if after > before else "down"
        words = f"Scaled {way} replica set {name} from {before} to {after}"
        self._events.normal(refer(DEPLOYMENTS, deployment), "ScalingReplicaSet", words)

    # status

    def _note_pause(self, rollout: _Rollout) -> None:
        deployment, notes = rollout.deployment, rollout.notes
        if not plans.watched(deployment):
            return
        current = plans.progressing(deployment)
        if current is not None and current.reason == plans.TIMED_OUT:
            return
        paused = current is not None and current.reason == plans.PAUSED
        now = self._clock.time()
        if deployment.spec.paused and not paused:
            notes.append(plans.note("Progressing", plans.PAUSED, "Deployment is paused", now, holds=None))
        elif paused and not deployment.spec.paused:
            notes.append(plans.note("Progressing", plans.RESUMED, "Deployment is resumed", now, holds=None))

    async def _sync_status(self, rollout: _Rollout) -> float | None:
        deployment = rollout.deployment
        written = await self._write(rollout)
        if deployment.metadata.deleting:
            return None
        if plans.is_complete(deployment, written) or deployment.spec.paused:
            await self._forget_history(deployment, rollout.olds)
            return None
        current = plans.progressing(deployment)
        seconds = plans.left(deployment, current, self._clock.time()) if current is not None else None
        return seconds + 1 if seconds else None

    async def _write(self, rollout: _Rollout) -> dict[str, Any]:
        now = self._clock.time()
        wanted = plans.status(rollout.deployment, rollout.new, rollout.sets, now, notes=rollout.notes)
        await write_status(self._client, DEPLOYMENTS, rollout.deployment, wanted, guarded=False)
        return wanted

    async def _forget_history(self, deployment: Deployment, olds: Sequence[ReplicaSet]) -> None:
        for one in plans.beyond_history(deployment, olds):
            await delete_object(self._client, REPLICA_SETS, one, guarded=True)
            self._sets.deleted(one)

    def _pod_gone(self, old: Pod | None, new: Pod | None) -> list[str]:
        """Queue a Recreate Deployment when its last old pod is gone or has ended."""
        if old is None or (new is not None and (old.terminated or not new.terminated)):
            return []
        ref = controller_of(old)
        owner = self._set_cache.get(f"{old.metadata.namespace}/{ref.name}") if ref is not None else None
        above = controller_of(owner) if owner is not None else None
        if owner is None or above is None:
            return []
        deployment = self._deployments.get(f"{owner.metadata.namespace}/{above.name}")
        recreates = deployment is not None and deployment.spec.strategy.type == plans.RECREATE
        return [deployment.key] if recreates and deployment is not None else []


def _without(sets: Sequence[ReplicaSet], new: ReplicaSet | None) -> list[ReplicaSet]:
    return [one for one in sets if new is None or one.metadata.uid != new.metadata.uid]


def _is_saturated(deployment: Deployment, new: ReplicaSet) -> bool:
    """Whether the new ReplicaSet has all pods already, so that the old ones have nothing to do."""
    desired = deployment.spec.replicas
    return new.spec.replicas == new.status.available_replicas == desired == plans.number(new, names.DESIRED_REPLICAS)
