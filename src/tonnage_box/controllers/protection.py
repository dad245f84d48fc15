"""PVC, PV and VAC protection: finalizers that delay deletion while a claim, volume or attributes class is in use.

Admission sets the finalizers at creation. These controllers remove them, and restore them on an object that lost them
though it is not being deleted, because its volume may be in use. A claim is in use while a pod with a node names it,
ended or not; by an ephemeral volume only until its owner pod has been shut down. Watched: claims that are being deleted
or lack the finalizer, and pods that are deleted or shut down; no other event can end a use.
Source: pkg/controller/volume/pvcprotection, vacprotection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tonnage.base.aio.tasks import KeyedLocks
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import ATTRIBUTES_CLASSES, CLAIMS, PODS, VOLUMES
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import VolumeAttributesClass
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.indexes import (
    CLAIMS_BY_ATTRIBUTES,
    PODS_BY_CLAIM,
    VOLUMES_BY_ATTRIBUTES,
    attributes_of,
    claim_keys,
    claims,
    pods_by_claim,
    volumes,
)
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.object_write import protect, release
from tonnage.provisioning.claims.bind import find
from tonnage_box.controllers.tombstones import Tombstones


class ClaimProtection(Reconciler[str]):
    """Removes kubernetes.io/pvc-protection from deleted claims that no pod uses."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._pod_lists = _PodLists(client)
        self._gone = Tombstones()
        pods, claims = pods_by_claim(informers), informers.of(CLAIMS)
        self._pods, self._claims = pods.cache, claims.cache
        super().__init__("pvc_protection", workers=32)
        self.watch(claims, _claim_due)
        self.watch(pods, self._ended_use)

    async def reconcile(self, key: str) -> None:
        """Remove the finalizer of a deleted, unused claim; restore a missing finalizer. Idempotent.

        Raises: ApiError.
        """
        claim = self._claims.get(key)
        if claim is None or not any(_claim_due(None, claim)):
            return
        if not claim.metadata.deleting:
            await protect(self._client, CLAIMS, claim, names.PVC_PROTECTION)
            return
        if any(uses(pod, claim) for pod in self._pods.by(PODS_BY_CLAIM, key)) or await self._used_live(claim):
            return
        await release(self._client, CLAIMS, claim, names.PVC_PROTECTION)

    async def _used_live(self, claim: PersistentVolumeClaim) -> bool:
        """Whether a pod that the cache does not know yet uses the claim.

        Only its owner can use an ephemeral claim (others that name it would find it being deleted, and the kubelet
        rejects those): one GET. Any pod can use another claim: one LIST of the namespace, shared by all who ask.
        """
        meta = claim.metadata
        owner = next((o for o in meta.owner_references if o.controller and o.kind == "Pod"), None)
        if owner is not None and owner.uid in self._gone:
            return False
        if owner is None:
            return any(uses(pod, claim) for pod in await self._pod_lists.of(meta.namespace))
        pod = await find(self._client, PODS, owner.name, meta.namespace)
        return pod is not None and uses(pod, claim)

    def _ended_use(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        if old is None:
            return ()
        if new is None or new.metadata.uid != old.metadata.uid:
            self._gone.add(old.metadata.uid)
        elif not _shut_down(new):
            return ()
        return [key for key in claim_keys(old) if (claim := self._claims.get(key)) is not None and _held(claim)]


class VolumeProtection(Reconciler[str]):
    """Removes kubernetes.io/pv-protection from deleted PVs that are not bound.

    While external-provisioner's finalizer is present, the PV cannot be deleted anyway: ours stays as long, so that the
    two
    writers cause no conflicts.
    """

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        informer = volumes(informers)
        self._volumes = informer.cache
        super().__init__("pv_protection", workers=16)
        self.watch(informer, _volume_due)

    async def reconcile(self, name: str) -> None:
        """Remove the finalizer of a deleted, unbound PV; restore a missing finalizer. Idempotent. Raises: ApiError."""
        volume = self._volumes.get(name)
        if volume is None or not any(_volume_due(None, volume)):
            return
        if not volume.metadata.deleting:
            await protect(self._client, VOLUMES, volume, names.PV_PROTECTION)
        else:
            await release(self._client, VOLUMES, volume, names.PV_PROTECTION)


class AttributesClassProtection(Reconciler[str]):
    """Removes kubernetes.io/vac-protection from deleted VolumeAttributesClasses that no claim and no PV names."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        classes, held, made = informers.of(ATTRIBUTES_CLASSES), claims(informers), volumes(informers)
        self._classes, self._claims, self._volumes = classes.cache, held.cache, made.cache
        super().__init__("vac_protection")
        self.watch(classes, _class_due)
        self.watch(held, self._claim_changed)
        self.watch(made, self._volume_changed)

    async def reconcile(self, name: str) -> None:
        """Remove the finalizer of a deleted, unused class; restore a missing one. Idempotent. Raises: ApiError."""
        found = self._classes.get(name)
        if found is None or not any(_class_due(None, found)):
            return
        if not found.metadata.deleting:
            await protect(self._client, ATTRIBUTES_CLASSES, found, names.VAC_PROTECTION)
        elif not (self._is_used(name) or await self._is_used_live(name)):
            await release(self._client, ATTRIBUTES_CLASSES, found, names.VAC_PROTECTION)

    def _is_used(self, name: str) -> bool:
        return bool(self._claims.by(CLAIMS_BY_ATTRIBUTES, name) or self._volumes.by(VOLUMES_BY_ATTRIBUTES, name))

    async def _is_used_live(self, name: str) -> bool:
        """Whether one uses it that the caches do not have yet; a class is deleted rarely."""
        if any(v.spec.volume_attributes_class_name == name for v in (await self._client.list(VOLUMES)).items):
            return True
        return any(name in attributes_of(claim) for claim in (await self._client.list(CLAIMS)).items)

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[str]:
        if old is None:
            return ()
        return self._going(attributes_of(old) - (attributes_of(new) if new is not None else set()))

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        before = old.spec.volume_attributes_class_name if old is not None else None
        now = new.spec.volume_attributes_class_name if new is not None else None
        return self._going({before} if before and before != now else set())

    def _going(self, released: Iterable[str]) -> Iterable[str]:
        return [n for n in released if (found := self._classes.get(n)) is not None and found.metadata.deleting]


class _PodLists:
    """LISTs of a namespace's pods.

    A caller that arrives during a LIST shares the next one, which begins after it asked.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._locks = KeyedLocks()
        self._asked = 0
        self._last: dict[str, tuple[int, list[Pod]]] = {}  # how many had asked when it began, and what it found

    async def of(self, namespace: str) -> list[Pod]:
        """All pods of the namespace, as they are at some time after the call. Raises: ApiError, UnavailableError."""
        self._asked += 1
        mine = self._asked
        async with self._locks.hold(namespace):
            begun, pods = self._last.get(namespace, (0, []))
            if begun < mine:
                await asyncio.sleep(0)  # callers that are about to ask may share this LIST
                begun = self._asked
                pods = (await self._client.list(PODS, namespace)).items
                self._last[namespace] = (begun, pods)
        if not self._locks.held(namespace):
            self._last.pop(namespace, None)
        return pods


def uses(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """Whether the pod keeps the claim in use."""
    if not pod.spec.node_name:
        return False
    name = claim.metadata.name
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None and volume.persistent_volume_claim.claim_name == name:
            return True
        if volume.ephemeral is not None and f"{pod.metadata.name}-{volume.name}" == name:
            owned = claim.metadata.controller_uid() == pod.metadata.uid
            if owned and not _shut_down(pod):
                return True
    return False


def _shut_down(pod: Pod) -> bool:
    return pod.metadata.deleting and pod.metadata.deletion_grace_period_seconds == 0


def _held(claim: PersistentVolumeClaim) -> bool:
    return claim.metadata.deleting and names.PVC_PROTECTION in claim.metadata.finalizers


def _claim_due(_: PersistentVolumeClaim | None, claim: PersistentVolumeClaim | None) -> Iterable[str]:
    if claim is None:
        return ()
    return (claim.key,) if claim.metadata.deleting == (names.PVC_PROTECTION in claim.metadata.finalizers) else ()


def _volume_due(_: PersistentVolume | None, volume: PersistentVolume | None) -> Iterable[str]:
    if volume is None:
        return ()
    held = volume.metadata.finalizers
    if not volume.metadata.deleting:
        return () if names.PV_PROTECTION in held else (volume.key,)
    if volume.status.phase == "Bound":
        return ()
    return (volume.key,) if names.PV_PROTECTION in held and names.PROVISIONER_FINALIZER not in held else ()


def _class_due(_: VolumeAttributesClass | None, found: VolumeAttributesClass | None) -> Iterable[str]:
    if found is None:
        return ()
    return (found.key,) if found.metadata.deleting == (names.VAC_PROTECTION in found.metadata.finalizers) else ()
