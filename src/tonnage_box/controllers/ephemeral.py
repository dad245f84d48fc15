"""Ephemeral volume controller: claims of generic ephemeral volumes (KEP-1698, pkg/controller/volume/ephemeral).

Watches pods that appear (their volumes never change; the garbage collector handles deleted pods) and claims that are
deleted while their pod exists. It creates claims and never changes or deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import ApiAlreadyExistsError, PreconditionError, TonnageError
from tonnage.base.observe.metrics import EPHEMERAL_CREATED, EPHEMERAL_FAILED
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.api.pods import Pod, Volume, claim_name
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.indexes import PODS_BY_CLAIM, pods_by_claim
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.claims.node_scope import check_owner
from tonnage_box.controllers.podcontrol.pod_template import owner_reference

NAME = "ephemeral_volume"


class EphemeralController(Reconciler[str]):
    """Creates claim `<pod>-<volume>` for each ephemeral volume, owned by the pod."""

    def __init__(self, client: Client, informers: Informers, events: EventRecorder) -> None:
        self._client, self._events = client, events
        pods = pods_by_claim(informers)
        claims = informers.of(CLAIMS)
        self._pods, self._claims = pods.cache, claims.cache
        super().__init__(NAME, workers=16, backoff=Backoff(initial=0.005, maximum=1000.0))
        self.watch(claims, self._claim_gone)
        self.watch(pods, _pod_added)

    async def reconcile(self, key: str) -> None:
        """Create the claims that the pod lacks. Idempotent. Raises: TonnageError: not all could be created."""
        pod = self._pods.get(key)
        if pod is None or pod.metadata.deleting:
            return
        for volume in pod.spec.volumes:
            if volume.ephemeral is None:
                continue
            try:
                await self._ensure(pod, volume)
            except TonnageError as failure:
                self._events.warning(refer(PODS, pod), "FailedBinding", f"ephemeral volume {volume.name}: {failure}")
                raise PreconditionError(f"pod {key}, ephemeral volume {volume.name}: {failure}") from failure

    async def _ensure(self, pod: Pod, volume: Volume) -> None:
        namespace, name = pod.metadata.namespace, claim_name(pod.metadata.name, volume)
        claim = self._claims.get(f"{namespace}/{name}")
        if claim is None:
            claim = await self._create(pod, volume, name)
        check_owner(claim, pod)

    async def _create(self, pod: Pod, volume: Volume, name: str) -> PersistentVolumeClaim:
        EPHEMERAL_CREATED.inc()
        try:
            return await self._client.create(CLAIMS, claim_of(pod, volume), pod.metadata.namespace)
        except ApiAlreadyExistsError:  # stale cache: we created it before a crash, or another client did
            return await self._client.get(CLAIMS, name, pod.metadata.namespace)
        except TonnageError as failure:
            EPHEMERAL_FAILED.inc()
            raise PreconditionError(f"create PVC {name}: {failure}") from failure

    def _claim_gone(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[str]:
        if old is None or new is not None:
            return ()
        return [pod.key for pod in self._pods.by(PODS_BY_CLAIM, old.key) if _wants(pod)]


def claim_of(pod: Pod, volume: Volume) -> dict[str, Any]:
    """The claim that an ephemeral volume of the pod asks for, ready to be created."""
    assert volume.ephemeral is not None
    template = volume.ephemeral.volume_claim_template
    meta = template.metadata
    given = {key: value for key, value in (("labels", meta.labels), ("annotations", meta.annotations)) if value}
    named = {"name": claim_name(pod.metadata.name, volume), "namespace": pod.metadata.namespace}
    metadata = {**named, "ownerReferences": [owner_reference(PODS, pod)], **given}
    return {"metadata": metadata, "spec": to_builtins(template.spec)}


def _wants(pod: Pod) -> bool:
    return not pod.metadata.deleting and any(v.ephemeral is not None for v in pod.spec.volumes)


def _pod_added(old: Pod | None, new: Pod | None) -> Iterable[str]:
    if new is None or (old is not None and old.metadata.uid == new.metadata.uid):
        return ()
    return (new.key,) if _wants(new) else ()
