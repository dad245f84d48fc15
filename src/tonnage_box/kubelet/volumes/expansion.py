"""Growth of volumes on their node, once the driver's resizer has done its part (pkg/volume/util/operationexecutor).

A claim whose status says that its growth awaits the node is grown when a pod mounts it, and while a pod has it mounted.
What became of it is written into the claim's status, which the resizer reads.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.base.aio.tasks import KeyedLocks
from tonnage.base.errors import ApiConflictError, TonnageError
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.conditions import true, without
from tonnage.provisioning.claims.growth import (
    NODE_ERROR,
    NODE_IN_PROGRESS,
    NODE_INFEASIBLE,
    STORAGE,
    awaits_node,
    has_grown,
)
from tonnage_box.kubelet.volumes.csi_volumes import CsiMounts, CsiVolume, MountError

log = logging.getLogger(__name__)
_TRIES = 5
"""Of a growth whose claim others write at the same time."""
_NEVER_CODES = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND})


@dataclass(frozen=True)
class Growing:
    """A mounted volume of a pod. path: where; secrets: those of the PV for its growth."""

    pod: Pod
    claim: PersistentVolumeClaim
    pv: PersistentVolume
    volume: CsiVolume
    path: str
    read_only: bool
    secrets: Mapping[str, str] | None


class VolumeExpansion(Reconciler[str]):
    """Grows mounted volumes. Keys are claims.

    find_mounted: what a pod has mounted of the claim of that name, if anything.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        clock: Clock,
        *,
        mounts: CsiMounts,
        pods: Cache[Pod],
        claims: Cache[PersistentVolumeClaim],
        find_mounted: Callable[[Pod, str], Awaitable[Growing | None]],
    ) -> None:
        self._client, self._events, self._clock = client, events, clock
        self._mounts, self._pods, self._claims, self._find_mounted = mounts, pods, claims, find_mounted
        self._locks = KeyedLocks()
        super().__init__("volume_expansion", backoff=Backoff(initial=0.5, maximum=122.0))

    def claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """Note a claim whose growth begins to await the node; what is written here later changes nothing."""
        if new is not None and awaits_node(new):
            asked = new.status.allocated_resources
            if old is None or not awaits_node(old) or old.status.allocated_resources != asked:
                self.enqueue(new.key)

    def claim_mounted(self, key: str) -> None:
        """Look again at a claim that may have changed while it was being mounted."""
        claim = self._claims.get(key)
        if claim is not None and awaits_node(claim):
            self.enqueue(key)

    async def reconcile(self, key: str) -> None:
        """Grow the volume where a pod has it mounted; another mount grows it itself. Raises: TonnageError."""
        namespace, _, name = key.partition("/")
        pods = [pod for pod in self._pods if pod.metadata.namespace == namespace and not pod.terminated]
        found = [growing for pod in pods if (growing := await self._find_mounted(pod, name)) is not None]
        if not found:
            return
        growing = min(found, key=lambda one: one.read_only)  # a pod that only reads does not keep others from growing
        try:
            await self.expand(growing)
        except TonnageError as failure:
            text = f'NodeExpandVolume.NodeExpandVolume failed for volume "{growing.pv.metadata.name}" : {failure}'
            self._events.warning(refer(PODS, growing.pod), "VolumeResizeFailed", text)
            raise

    async def expand_mounting(self, growing: Growing) -> None:
        """Grow a volume that is being mounted. Raises: MountError."""
        try:
            await self.expand(growing)
        except TonnageError as failure:
            name = growing.pv.metadata.name
            text = f'MountVolume.Setup failed while expanding volume for volume "{name}" : {failure}'
            raise MountError(text) from failure

    async def expand(self, growing: Growing) -> None:
        """Grow a mounted volume if that is still awaited, and write what became of it. Idempotent.

        Raises: CsiError, ApiError, NotFoundError, UnsupportedError.
        """
        async with self._locks.hold(growing.claim.key):
            for _ in range(_TRIES - 1):
                try:
                    return await self._expand(growing)
                except ApiConflictError:  # the resizer writes the same status
                    continue
            return await self._expand(growing)

    async def _expand(self, growing: Growing) -> None:
        meta = growing.claim.metadata
        claim = await find(self._client, CLAIMS, meta.name, meta.namespace)
        if claim is None or claim.metadata.uid != meta.uid or not awaits_node(claim):
            return
        if growing.read_only:
            self._reject(growing)
            return
        size = claim.status.allocated_resources.get(STORAGE) or growing.pv.spec.capacity.get(STORAGE, "0")
        if claim.status.allocated_resource_statuses.get(STORAGE, NODE_IN_PROGRESS) != NODE_IN_PROGRESS:
            claim = await self._write(claim, {"allocatedResourceStatuses": {STORAGE: NODE_IN_PROGRESS}})
        try:
            await self._mounts.expand(growing.volume, growing.path, to_bytes(size), growing.secrets)
        except CsiError as failure:
            await self._note(claim, failure)
            if failure.code is not Code.FAILED_PRECONDITION:
                raise
            log.warning("volume in use cannot grow here claim=%s error=%s", claim.key, failure)
            return
        await self._finish(growing, claim, size)

    async def _finish(self, growing: Growing, claim: PersistentVolumeClaim, size: str) -> None:
        await self._write(claim, has_grown(claim, size))
        name, node = growing.pv.metadata.name, growing.pod.spec.node_name
        text = f'MountVolume.NodeExpandVolume succeeded for volume "{name}" {node}'
        self._events.normal(refer(PODS, growing.pod), "FileSystemResizeSuccessful", text)
        self._events.normal(refer(CLAIMS, claim), "FileSystemResizeSuccessful", text)

    async def _note(self, claim: PersistentVolumeClaim, failure: CsiError) -> None:
        """Write that the driver rejected; what cannot succeed unchanged is left to the resizer."""
        status: dict[str, Any] = {}
        if failure.code in _NEVER_CODES:
            status["allocatedResourceStatuses"] = {STORAGE: NODE_INFEASIBLE}
        known = claim.status.conditions
        if not any((one.get("type"), one.get("status")) == (NODE_ERROR, "True") for one in known):
            text = f"failed to expand pvc with Expander.NodeExpand failed to expand the volume : {failure}"
            new = true(NODE_ERROR, text, rfc3339(self._clock.time()))
            status["conditions"] = [*without(known, [NODE_ERROR]), new]
        if status:
            await self._write(claim, status)

    async def _write(self, claim: PersistentVolumeClaim, status: dict[str, Any]) -> PersistentVolumeClaim:
        meta = claim.metadata
        return await self._client.patch(
            CLAIMS, meta.name, {"status": status}, meta.namespace, subresource="status",
            resource_version=meta.resource_version,
        )  # fmt: skip

    def _reject(self, growing: Growing) -> None:
        name = growing.pv.metadata.name
        text = f'MountVolume.NodeExpandVolume failed for volume "{name}" requested read-only file system'
        self._events.warning(refer(PODS, growing.pod), "FileSystemResizeFailed", text)
        self._events.warning(refer(CLAIMS, growing.claim), "FileSystemResizeFailed", text)
