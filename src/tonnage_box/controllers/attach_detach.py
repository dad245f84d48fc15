"""Attach/detach controller: VolumeAttachments of drivers with attachRequired (Kubernetes' volume/attachdetach).

A volume is attached to the nodes of the pods that use it, and detached when no pod of a node does and the kubelet there
no longer says that it uses it (status.volumesInUse). What the kubelet says does not count for a node with the taint
out-of-service, and after 6 minutes for one that is not Ready. The driver's attacher does the work. A driver without
attachRequired costs no write.

A kubelet may begin to use a volume while it is about to be detached. Each side writes first, and then looks at what the
other wrote to the same Node: the controller takes the volume off status.volumesAttached and detaches it only if it is
not in use in the Node that this write returns; the kubelet puts it into status.volumesInUse and mounts it only if the
Node still shows it as attached. Whichever write comes first, at most one of them goes on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.aio.tasks import SharedRead
from tonnage.base.errors import ApiAlreadyExistsError, ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node, PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import ATTACHMENTS, CLAIMS, CSI_DRIVERS, NODES, PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import VolumeAttachment
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.indexes import PODS_BY_CLAIM, claimed, pods_by_claim, volumes
from tonnage.kubernetes.client.informer import Informers

log = logging.getLogger(__name__)
_BY_VOLUME, _BY_NODE = "attachments by volume", "attachments by node"
_OURS = re.compile(r"csi-[0-9a-f]{64}")
"""Names of attachments that this controller makes; those of others are left alone."""
_REMEMBERED = 10_000
FORCE_AFTER = 360.0
"""Seconds for which a volume that no pod uses is left to a node that is not Ready (maxWaitForUnmountDuration)."""
_SHARED = frozenset({"ReadWriteMany", "ReadOnlyMany"})


class AttachDetach(Reconciler[tuple[str, str]]):
    """Keys are ("volume", PV) for its attachments, and ("node", name) for the node's status.volumesAttached."""

    def __init__(
        self, client: Client, informers: Informers, events: EventRecorder, *, clock: Clock | None = None
    ) -> None:
        self._client, self._events, self._clock = client, events, clock or RealClock()
        self._unwanted: dict[str, float] = {}  # uid of an attachment -> since when no pod uses it
        self._leaving: set[str] = set()
        """Uids of attachments that are to be deleted, come what may: no longer shown in the status of their nodes."""
        self._node_writes = SharedRead(self._write_node)
        pods, pvs, claims = pods_by_claim(informers), volumes(informers), informers.of(CLAIMS)
        nodes, drivers, attachments = informers.of(NODES), informers.of(CSI_DRIVERS), informers.of(ATTACHMENTS)
        attachments.cache.add_index(_BY_VOLUME, lambda one: filter(None, (one.volume_name,)))
        attachments.cache.add_index(_BY_NODE, lambda one: filter(None, (one.node_name,)))
        self._pods, self._volumes, self._claims = pods.cache, pvs.cache, claims.cache
        self._nodes, self._drivers, self._attachments = nodes.cache, drivers.cache, attachments.cache
        self._reported: set[tuple[str, str]] = set()
        super().__init__("attach_detach", workers=8)
        self.watch(pods, self._pod_changed)
        self.watch(claims, _claim_bound)
        self.watch(nodes, self._node_changed)
        self.watch(attachments, self._attachment_changed)
        self.watch(drivers)  # they must be known before the first look
        self.watch(pvs)

    async def reconcile(self, key: tuple[str, str]) -> float | None:
        """Do the missing steps. Idempotent. Returns seconds until a detachment may be forced. Raises: ApiError."""
        kind, name = key
        if kind == "node":
            await self._show(name)
            return None
        pv, found = self._volumes.get(name), self._attachments.by(_BY_VOLUME, name)
        wanted = self._wanted(pv) if pv is not None and self._is_attached(pv) else {}
        unused = [one for one in found if one.node_name not in wanted or one.metadata.uid in self._leaving]
        left = await self._detach(pv, unused)
        for one in found:
            if one.node_name in wanted:
                self._unwanted.pop(one.metadata.uid, None)
        if pv is not None:
            await self._attach(pv, wanted, {one.node_name: one for one in found})
        return left

    async def _detach(self, pv: PersistentVolume | None, unused: Iterable[VolumeAttachment]) -> float | None:
        """Delete the attachments that may go; return the seconds until the next may be forced."""
        waits = []
        for one in unused:
            if one.metadata.deleting or not _OURS.fullmatch(one.metadata.name):
                continue
            uid = one.metadata.uid
            if uid not in self._leaving and (left := await self._take_off(one, pv)) > 0:
                waits.append(left)
                continue
            with suppress(ApiNotFoundError):  # else it is tried again, whoever wants it: it may be deleted late
                await self._client.delete(ATTACHMENTS, one.metadata.name, uid=uid)
            self._unwanted.pop(uid, None)
        return min((left for left in waits if left < inf), default=None)

    async def _take_off(self, one: VolumeAttachment, pv: PersistentVolume | None) -> float:
        """Show an attachment in its node's status no more, or return the seconds to wait for a kubelet that uses it."""
        if (left := self._wait_for_node(one, pv, self._nodes.get(one.node_name))) > 0:
            return left
        uid = one.metadata.uid
        self._leaving.add(uid)
        is_off = False
        try:
            node = await self._node_writes.get(one.node_name)
            left = self._wait_for_node(one, pv, node)
            is_off = left <= 0
        finally:
            if not is_off:  # the node shows it again
                self._leaving.discard(uid)
                self.enqueue(("node", one.node_name))
        return left

    def _wait_for_node(self, one: VolumeAttachment, pv: PersistentVolume | None, node: Node | None) -> float:
        """Seconds to wait for the node's kubelet, inf for a node that is Ready: it unmounts."""
        if node is None or not _is_in_use(node, pv):
            return 0.0
        now = self._clock.monotonic()
        left = self._unwanted.setdefault(one.metadata.uid, now) + FORCE_AFTER - now
        if node.is_out_of_service or (not node.is_ready and left <= 0):
            why = "out of service" if node.is_out_of_service else "not Ready"
            log.warning("volume in use is detached by force volume=%s node=%s why=%s", one.volume_name, node.key, why)
            return 0.0
        return inf if node.is_ready else left

    async def _attach(
        self, pv: PersistentVolume, wanted: Mapping[str, list[Pod]], there: dict[str, VolumeAttachment]
    ) -> None:
        is_shared = bool(_SHARED & set(pv.spec.access_modes))
        for node, pods in wanted.items():
            if node in there:
                self._tell(pv, there[node], pods)
            elif there and not is_shared:
                self._reject(pv.metadata.name, pods, [pod for other in there for pod in wanted.get(other, [])])
            else:
                there[node] = await self._create(pv, node)

    def _is_attached(self, pv: PersistentVolume) -> bool:
        """Whether its driver wants volumes to be attached: as long as nothing else is said."""
        if pv.spec.csi is None:
            return False
        driver = self._drivers.get(pv.spec.csi.driver)
        return driver is None or driver.spec.attach_required

    def _wanted(self, pv: PersistentVolume) -> dict[str, list[Pod]]:
        """The pods that use the volume, by their nodes."""
        found: dict[str, list[Pod]] = {}
        for claim in claimed(pv):
            for pod in self._pods.by(PODS_BY_CLAIM, claim):
                if pod.spec.node_name and not pod.terminated and self._nodes.get(pod.spec.node_name) is not None:
                    found.setdefault(pod.spec.node_name, []).append(pod)
        return found

    async def _create(self, pv: PersistentVolume, node: str) -> VolumeAttachment:
        assert pv.spec.csi is not None
        name = names.attachment_name(pv.spec.csi.volume_handle, pv.spec.csi.driver, node)
        source = {"persistentVolumeName": pv.metadata.name}
        spec = {"attacher": pv.spec.csi.driver, "nodeName": node, "source": source}
        try:
            return await self._client.create(ATTACHMENTS, {"metadata": {"name": name}, "spec": spec})
        except ApiAlreadyExistsError:
            return await self._client.get(ATTACHMENTS, name)

    def _tell(self, pv: PersistentVolume, one: VolumeAttachment, pods: Iterable[Pod]) -> None:
        """Events of what came of an attachment, once each."""
        error = (one.status.get("attachError") or {}).get("message", "")
        outcome = "" if one.attached else error
        mark = (one.metadata.uid, outcome)
        if mark in self._reported or not (one.attached or error):
            return
        self._note(mark)
        name = pv.metadata.name
        for pod in pods:
            if outcome:
                text = f'AttachVolume.Attach failed for volume "{name}" : {outcome}'
                self._events.warning(refer(PODS, pod), "FailedAttachVolume", text)
            else:
                text = f'AttachVolume.Attach succeeded for volume "{name}" '
                self._events.normal(refer(PODS, pod), "SuccessfulAttachVolume", text)

    def _note(self, mark: tuple[str, str]) -> None:
        if len(self._reported) > _REMEMBERED:
            self._reported.clear()
        self._reported.add(mark)

    def _reject(self, volume: str, pods: Iterable[Pod], others: Sequence[Pod]) -> None:
        """Events of pods whose volume is attached to another node."""
        for pod in pods:
            if (mark := (pod.metadata.uid, volume)) in self._reported:
                continue
            self._note(mark)
            local = [other.metadata.name for other in others if other.metadata.namespace == pod.metadata.namespace]
            why = "Volume is already exclusively attached to one node and can't be attached to another"
            if local:
                more = len(others) - len(local)
                why = f"Volume is already used by pod(s) {', '.join(local)}"
                why += f" and {more} pod(s) in different namespaces" if more else ""
            elif others:
                why = f"Volume is already used by {len(others)} pod(s) in different namespaces"
            text = f'Multi-Attach error for volume "{volume}" {why}'
            self._events.warning(refer(PODS, pod), "FailedAttachVolume", text)

    async def _show(self, name: str) -> None:
        """Say in a node's status which volumes are attached to it, if it says otherwise."""
        node = self._nodes.get(name)
        if node is not None and self._attached(name) != {one.get("name") for one in node.status.volumes_attached}:
            await self._node_writes.get(name)

    async def _write_node(self, name: str) -> Node | None:
        """Write a node's status in any case; return the Node as it is with that, None if it is gone."""
        attached = [{"name": unique, "devicePath": ""} for unique in sorted(self._attached(name))]
        body = {"status": {"volumesAttached": attached or None}}
        with suppress(ApiNotFoundError):
            return await self._client.patch(NODES, name, body, subresource="status")
        return None

    def _attached(self, name: str) -> set[str]:
        return set(filter(None, map(self._shown, self._attachments.by(_BY_NODE, name))))

    def _shown(self, one: VolumeAttachment) -> str:
        pv = self._volumes.get(one.volume_name)
        is_leaving = one.metadata.deleting or one.metadata.uid in self._leaving
        if not one.attached or is_leaving or pv is None or pv.spec.csi is None:
            return ""
        return names.attached_volume(pv.spec.csi.driver, pv.spec.csi.volume_handle)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> Iterable[tuple[str, str]]:
        before = (old.spec.node_name, old.terminated) if old is not None else None
        after = (new.spec.node_name, new.terminated) if new is not None else None
        pod = new or old
        if pod is None or before == after or not pod.spec.node_name:
            return
        for name in pod.claim_names():
            claim = self._claims.get(f"{pod.metadata.namespace}/{name}")
            if claim is not None and claim.spec.volume_name:
                yield "volume", claim.spec.volume_name

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[tuple[str, str]]:
        node = new or old
        assert node is not None
        if new is not None and (old is None or old.status.volumes_attached != new.status.volumes_attached):
            yield "node", new.metadata.name
        if old is not None and new is not None and _node_shape(old) == _node_shape(new):
            return
        for one in self._attachments.by(_BY_NODE, node.metadata.name):
            yield "volume", one.volume_name

    def _attachment_changed(
        self, old: VolumeAttachment | None, new: VolumeAttachment | None
    ) -> Iterable[tuple[str, str]]:
        one = new or old
        assert one is not None
        if new is None:
            self._unwanted.pop(one.metadata.uid, None)
            self._leaving.discard(one.metadata.uid)
        yield "volume", one.volume_name
        yield "node", one.node_name


def _is_in_use(node: Node, pv: PersistentVolume | None) -> bool:
    """Whether the node's kubelet says so; nothing is known of a volume that is gone."""
    if pv is None or pv.spec.csi is None:
        return False
    return names.attached_volume(pv.spec.csi.driver, pv.spec.csi.volume_handle) in node.status.volumes_in_use


def _node_shape(node: Node) -> object:
    return node.status.volumes_in_use, node.is_ready, node.is_out_of_service


def _claim_bound(old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[tuple[str, str]]:
    if new is not None and new.spec.volume_name and (old is None or old.spec.volume_name != new.spec.volume_name):
        yield "volume", new.spec.volume_name
