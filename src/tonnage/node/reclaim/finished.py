"""Reclaims the data of ephemeral volumes whose pod has finished, for classes that ask for it.

A finished pod may stay for long, as those of Jobs do, and its claims with it. The data is deleted only while no object
names the claim but that pod, by live reads, and the volume is not mounted. The driver marks the volume first: from then
on it rejects each use, also by a pod that was made after the reads. The claim and the PV get their conditions last, or
from the next agent where this one was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import Raw

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import rfc3339
from tonnage.base.aio.tasks import SharedRead
from tonnage.base.errors import ApiNotFoundError, InvalidError
from tonnage.base.observe import metrics
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim, TypedReference
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, SNAPSHOTS, STORAGE_CLASSES, VOLUMES, Kind
from tonnage.kubernetes.api.matching import capacity
from tonnage.kubernetes.api.meta import KubeObject, Object
from tonnage.kubernetes.api.origin import is_claim
from tonnage.kubernetes.api.pods import ClaimVolumeSource, Pod, claim_name
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler, on_add
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.claims.bind import change, find
from tonnage.provisioning.claims.conditions import true, without
from tonnage.provisioning.claims.node_scope import DriverInfo, pod_owner
from tonnage.provisioning.claims.provisioning import reclaims_finished

log = logging.getLogger(__name__)
WORKERS = 32
"""Volumes looked at together: those of one namespace share a read of what names them."""
SOONEST, LATEST = 0.1, 60.0
"""Seconds between two looks at a volume that is not mounted and cannot be reclaimed yet."""
_FINISHED = "PodFinished"


class _Volume(Object, frozen=True):
    name: str = ""
    ephemeral: dict[str, Raw] | None = None
    persistent_volume_claim: ClaimVolumeSource | None = None


class _Spec(Object, frozen=True):
    volumes: list[_Volume] = []
    data_source: TypedReference | None = None
    data_source_ref: TypedReference | None = None


class _User(KubeObject, frozen=True):
    """A pod or claim, as far as it names claims: 500 whole pods take eight times as long to decode."""

    spec: _Spec = _Spec()


_PODS, _CLAIMS = (Kind(kind.group, kind.kind, kind.plural, _User) for kind in (PODS, CLAIMS))


class FinishedReclaimer(Reconciler[str]):
    """Loop over this node's PVs, by name. The driver reports each volume that was unstaged; nothing is polled."""

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        self._node = node
        self._pauses = Backoff(SOONEST, LATEST)
        self._unstaged: set[str] = set()
        """PVs whose volumes were unstaged, and that were not looked at to the end since."""
        self._reported: dict[str, str] = {}
        self._users = SharedRead(self._read_users)
        super().__init__("reclaim-finished", workers=WORKERS, backoff=Backoff(SOONEST, LATEST))
        self.watch(informers.of(VOLUMES, labels=node.scope.selector), self._concerned).on_change(self._note)
        self.watch(informers.of(STORAGE_CLASSES), on_add(self._of_class))  # at the start PVs may be seen before it
        node.drivers.on_add(lambda _: self._look_at_all())

    def _concerned(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        """Return a PV that appears, as at the start; later the driver reports what may have changed.

        The pod of a PV may end before that is seen to be Bound, so then it is returned as well.
        """
        return self._keys(new) if new is not None and (old is None or new.key in self._unstaged) else ()

    def _note(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """Forget a PV that is gone, and look at one that was bound once more: its pod may fail before it mounts it."""
        if new is None:
            self._unstaged.discard(old.key if old is not None else "")
        elif old is not None and old.status.phase != "Bound" == new.status.phase and new.key not in self._unstaged:
            for key in self._keys(new):
                self.enqueue(key, after=LATEST)

    def _keys(self, volume: PersistentVolume) -> Iterable[str]:
        return (volume.key,) if self._driver(volume) is not None else ()

    def _of_class(self, storage_class: StorageClass) -> Iterable[str]:
        name = storage_class.metadata.name
        return [
            key for volume in self._node.volumes if volume.spec.storage_class_name == name for key in self._keys(volume)
        ]

    def _look_at_all(self) -> None:
        for volume in self._node.volumes:
            for key in self._keys(volume):
                self.enqueue(key)

    def unstaged(self, handle: str) -> None:
        """Look at a volume that was unstaged. Its PV has its name."""
        key = handle.rpartition("/")[2]
        volume = self._node.volumes.get(key)
        is_early = volume is None and key.startswith(names.volume_name(""))
        if is_early or (volume is not None and volume.status.phase != "Bound"):
            self._unstaged.add(key)
        elif volume is not None and self._driver(volume) is not None:
            self._unstaged.add(key)
            self._pauses.forget(key)
            self.enqueue(key)

    async def reconcile(self, key: str) -> float | None:
        """Reclaim the volume of one PV, if its pod has finished. Returns when to look again."""
        volume = self._node.volumes.get(key)
        driver = self._driver(volume) if volume is not None else None
        if volume is None or driver is None:
            return None
        was_unstaged = key in self._unstaged
        self._unstaged.discard(key)  # now, as it may be unstaged again meanwhile
        pause: float | None = SOONEST
        try:
            claim = await self._claim(volume)
            pause = await self._look(volume, claim, driver, was_unstaged) if claim is not None else None
        finally:
            if pause is None:
                self._pauses.forget(key)
                self._reported.pop(key, None)
            elif was_unstaged:
                self._unstaged.add(key)
        return pause

    async def _look(
        self, volume: PersistentVolume, claim: PersistentVolumeClaim, driver: DriverInfo, was_unstaged: bool
    ) -> float | None:
        """Reclaim a volume, or complete what a kill interrupted. Returns when to look again."""
        assert volume.spec.csi is not None
        state = await driver.client.reclaim_volume(volume.spec.csi.volume_handle)
        if state.why:
            await self._record(volume, claim, state.why)
            return None
        pod = await self._pod(claim)
        if pod is None:
            return None  # the claim goes with it
        if state.in_use and not was_unstaged:  # else the kernel frees its device in a moment
            return None  # the driver reports its end
        if state.in_use or not is_finished(pod) or pod.spec.node_name != self._node.scope.node:
            return self._pauses.next(volume.key)
        if user := await self._user(claim, pod):
            self._tell(claim, f"{user} names it: its data stays although pod {pod.metadata.name} has finished")
            return self._pauses.next(volume.key)
        live = await find(self._node.client, VOLUMES, volume.key)  # the deletion destroys data of a user
        if live is not None and live.metadata.uid == volume.metadata.uid and self._driver(live) is not None:
            await self._reclaim(live, claim, driver, f"pod {pod.key} has {pod.status.phase.lower()}")
        return None

    async def _reclaim(
        self, volume: PersistentVolume, claim: PersistentVolumeClaim, driver: DriverInfo, cause: str
    ) -> None:
        assert volume.spec.csi is not None
        text = f"{cause}, and class {volume.spec.storage_class_name} has {names.RECLAIM_FINISHED}"
        state = await self._node.deletions.delete_data(driver, volume.spec.csi.volume_handle, volume, text)
        label = volume.spec.storage_class_name
        metrics.RECLAIMED.labels(label).inc()
        metrics.RECLAIMED_BYTES.labels(label).inc(capacity(volume))
        self._node.readings.want(driver.name, freed=True)
        await self._record(volume, claim, state.why)

    def _driver(self, volume: PersistentVolume) -> DriverInfo | None:
        """Return the driver of a PV whose volume this agent may reclaim, and has not."""
        spec, storage_class = volume.spec, self._node.classes.get(volume.spec.storage_class_name)
        driver = self._node.drivers.get(spec.csi.driver) if spec.csi is not None else None
        if driver is None or not driver.default_pool or not driver.reaches(volume) or storage_class is None:
            return None
        ours = spec.claim_ref is not None and volume.metadata.name == names.volume_name(spec.claim_ref.uid)
        is_bound = volume.status.phase == "Bound" and not volume.metadata.deleting
        if not ours or not is_bound or volume.status.reason == names.RECLAIMED:
            return None
        with suppress(InvalidError):  # reported on its claims
            if spec.persistent_volume_reclaim_policy == "Delete" and reclaims_finished(storage_class):
                return driver
        return None

    async def _claim(self, volume: PersistentVolume) -> PersistentVolumeClaim | None:
        """Return the ephemeral claim of a PV, live; None where it is gone or going, or no pod owns it."""
        ref = volume.spec.claim_ref
        claim = await find(self._node.client, CLAIMS, ref.name, ref.namespace) if ref is not None else None
        if ref is None or claim is None or claim.metadata.uid != ref.uid or claim.metadata.deleting:
            return None
        return claim if pod_owner(claim) is not None else None

    async def _pod(self, claim: PersistentVolumeClaim) -> Pod | None:
        """Return the owner of an ephemeral claim, live."""
        owner = pod_owner(claim)
        assert owner is not None
        pod = await find(self._node.client, PODS, owner.name, claim.metadata.namespace)
        return pod if pod is not None and pod.metadata.uid == owner.uid else None

    async def _user(self, claim: PersistentVolumeClaim, owner: Pod) -> str:
        """Return an object of the namespace that names the claim, as "pod p"; "" for none but its owner."""
        found = (await self._users.get(claim.metadata.namespace)).get(claim.metadata.name, ())
        return next((user for uid, user in found if uid != owner.metadata.uid), "")

    async def _read_users(self, namespace: str) -> Mapping[str, list[tuple[str, str]]]:
        """Read live, for each claim of a namespace, the uids and descriptions of the objects that name it."""
        client = self._node.client
        found: dict[str, list[tuple[str, str]]] = {}
        for pod in (await client.list(_PODS, namespace)).items:
            for name in filter(None, (claim_name(pod.metadata.name, volume) for volume in pod.spec.volumes)):
                found.setdefault(name, []).append((pod.metadata.uid, f"pod {pod.metadata.name}"))
        for other in (await client.list(_CLAIMS, namespace)).items:
            source = other.spec.data_source_ref or other.spec.data_source
            if source is not None and is_claim(source, namespace):
                text = f"claim {other.metadata.name}, which is a copy of it,"
                found.setdefault(source.name, []).append((other.metadata.uid, text))
        with suppress(ApiNotFoundError):  # a cluster without snapshots
            for snapshot in (await client.list(SNAPSHOTS, namespace)).items:
                text = f"VolumeSnapshot {snapshot.metadata.name}"
                name = snapshot.spec.source.persistent_volume_claim_name
                found.setdefault(name, []).append((snapshot.metadata.uid, text))
        return found

    async def _record(self, volume: PersistentVolume, claim: PersistentVolumeClaim, why: str) -> None:
        """Write the condition of the claim, then the reason of the PV, which ends the work. Idempotent."""
        text = f"the data was deleted: {why}"

        def condition(now: PersistentVolumeClaim) -> dict[str, object] | None:
            known = now.status.conditions
            at = rfc3339(self._node.clock.time())
            wanted = true(names.RECLAIMED, text, at, reason=_FINISHED, known=known)
            return None if wanted in known else {"status": {"conditions": [*without(known, [names.RECLAIMED]), wanted]}}

        def reason(now: PersistentVolume) -> dict[str, object] | None:
            status = {"reason": names.RECLAIMED, "message": text}
            return None if now.status.reason == names.RECLAIMED else {"status": status}

        with suppress(ApiNotFoundError):  # deleted meanwhile
            await change(self._node.client, CLAIMS, claim, condition, subresource="status")
            self._node.events.normal(refer(CLAIMS, claim), names.RECLAIMED, text)
            await change(self._node.client, VOLUMES, volume, reason, subresource="status")

    def _tell(self, claim: PersistentVolumeClaim, text: str) -> None:
        """Emit an Event once while it stays the same."""
        key = claim.spec.volume_name
        if self._reported.get(key) != text:
            self._reported[key] = text
            self._node.events.normal(refer(CLAIMS, claim), "NotReclaimed", f"claim {claim.key}: {text}")


def is_finished(pod: Pod) -> bool:
    """Return whether no container of a pod runs, or ever starts again.

    The kubelet starts none of a pod in a terminal phase, whatever its restartPolicy; a Job makes another pod. A pod
    with restartPolicy Always never succeeds, so its kubelet did not write that (pod-lifecycle, KEP-3329).
    """
    if pod.status.phase not in ("Succeeded", "Failed"):
        return False
    if pod.status.phase == "Succeeded" and pod.spec.restart_policy == "Always":
        return False
    return not any(status.state.running is not None for status in pod.all_container_statuses)
