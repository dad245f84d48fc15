"""Claim groups: writes the claim-group annotation on a pod's claims.

It holds the names of the other claims. For plain claims only: an ephemeral claim names its pod, and the agent reads
that. With it, a node creates all of a pod's volumes or none. It is written on late-binding claims of our drivers that
have no volume yet and share a pod that has not started. It stays while one of them waits, and is removed when the last
is bound or the pod is gone. A bound claim stays in the group only if it was bound for this pod: data of an earlier pod
must not be rolled back when a newer claim does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.controller.config import LoopContext, is_unstarted
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, STORAGE_CLASSES
from tonnage.kubernetes.api.matching import class_name
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.controller import Reconciler, on_add, on_difference
from tonnage.kubernetes.client.indexes import CLAIMS_UNBOUND, PODS_BY_CLAIM, claims, claims_of, pods_by_claim, volumes


class ClaimGroupLabels(Reconciler[str]):
    """Loop over claims."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("claim_groups")
        self._client, self._handles, informers = context.client, context.handles, context.informers
        self._volumes = self.watch(volumes(informers))
        # Pods that come, start or end: a pod's volumes never change. Claims that come, go or get a volume.
        pods = pods_by_claim(informers, fields=context.pod_fields)
        self._pods = self.watch(pods, on_difference(is_unstarted, self._pod_changed))
        self._claims = self.watch(claims(informers), on_difference(_shape, self._claim_changed))
        self._classes = self.watch(informers.of(STORAGE_CLASSES), on_add(self._class_added))

    async def reconcile(self, key: str) -> None:
        """Update one claim's annotation. Idempotent. Raises: ApiError."""
        claim = self._claims.get(key)
        if claim is None or not self._is_of_interest(claim):
            return
        wanted = ",".join(sorted(self._others(claim)))
        meta = claim.metadata
        if wanted == names.annotation(meta.annotations, names.CLAIM_GROUP):
            return
        notes = {names.CLAIM_GROUP: wanted or None, **names.former(meta.annotations, names.CLAIM_GROUP)}
        body = {"metadata": {"annotations": notes}}
        with suppress(ApiNotFoundError, ApiConflictError):  # gone, or created again
            # Without resourceVersion: the scheduler writes the claim at this moment, and one of us would get a
            # conflict.
            await self._client.patch(CLAIMS, meta.name, body, meta.namespace, uid=meta.uid)

    def _is_of_interest(self, claim: PersistentVolumeClaim) -> bool:
        """Return whether the claim may get the annotation, or has it."""
        if claim.metadata.deleting:
            return False
        return bool(names.annotation(claim.metadata.annotations, names.CLAIM_GROUP)) or self._is_ours(claim)

    def _is_ours(self, claim: PersistentVolumeClaim) -> bool:
        storage_class = self._classes.get(class_name(claim))
        known = storage_class is not None and storage_class.late and self._handles(storage_class.provisioner)
        return known and not claim.metadata.controller_uid() and not claim.metadata.deleting

    def _others(self, claim: PersistentVolumeClaim) -> set[str]:
        """Return the names of the other claims of its group."""
        if not self._is_ours(claim):
            return set()
        found: set[str] = set()
        for pod in self._pods.by(PODS_BY_CLAIM, claim.key):
            if is_unstarted(pod):
                found |= self._group(claim, pod) - {claim.metadata.name}
        return found

    def _group(self, claim: PersistentVolumeClaim, pod: Pod) -> set[str]:
        """Return a pod's claim group, if the claim is in it and one of them waits."""
        ours = {c.metadata.name: c for c in claims_of(pod, self._claims) if self._is_ours(c)}
        waiting = {name for name, c in ours.items() if not _has_volume(c)}
        made = {n for n, c in ours.items() if _has_volume(c) and self._is_made_for(c, pod, waiting, ours)}
        group = waiting | made
        return group if waiting and claim.metadata.name in group else set()

    def _is_made_for(
        self,
        claim: PersistentVolumeClaim,
        pod: Pod,
        waiting: set[str],
        ours: dict[str, PersistentVolumeClaim],
    ) -> bool:
        """Return whether a bound claim was provisioned for this pod.

        No pod has used it then.
        """
        noted = waiting & set(names.annotation(claim.metadata.annotations, names.CLAIM_GROUP).split(","))
        volume = self._volumes.get(claim.spec.volume_name)
        if not noted or volume is None:
            return False
        made = volume.metadata.creation_timestamp or ""
        before = [pod.metadata, *(ours[name].metadata for name in noted)]
        return all((meta.creation_timestamp or "~") <= made for meta in before)

    # Events

    def _claim_changed(self, claim: PersistentVolumeClaim) -> Iterable[str]:
        noted = names.annotation(claim.metadata.annotations, names.CLAIM_GROUP)
        keys = {claim.key, *(f"{claim.metadata.namespace}/{name}" for name in noted.split(",") if name)}
        for pod in self._pods.by(PODS_BY_CLAIM, claim.key):
            keys.update(_plain(pod))
        return keys if len(keys) > 1 or noted else ()

    def _pod_changed(self, pod: Pod) -> Iterable[str]:
        keys = _plain(pod)
        return keys if len(keys) > 1 else ()

    def _class_added(self, added: StorageClass) -> Iterable[str]:
        """Handle a class that was not known when its claims came."""
        waiting = self._claims.by(CLAIMS_UNBOUND, added.metadata.name)
        return {key for claim in waiting for pod in self._pods.by(PODS_BY_CLAIM, claim.key) for key in _plain(pod)}


def _plain(pod: Pod) -> list[str]:
    """Return keys of the claims that the pod names, without ephemeral ones."""
    sources = (volume.persistent_volume_claim for volume in pod.spec.volumes)
    return [f"{pod.metadata.namespace}/{source.claim_name}" for source in sources if source is not None]


def _has_volume(claim: PersistentVolumeClaim) -> bool:
    """Return whether the claim is fully bound.

    Another write during the binding would only cause conflicts.
    """
    return bool(claim.spec.volume_name) and claim.status.phase == "Bound"


def _shape(claim: PersistentVolumeClaim) -> tuple[object, ...]:
    meta = claim.metadata
    note = names.annotation(meta.annotations, names.CLAIM_GROUP)
    return meta.uid, claim.spec.storage_class_name, _has_volume(claim), meta.deleting, note
