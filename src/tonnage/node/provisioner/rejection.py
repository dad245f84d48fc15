"""Rejection of infeasible claims: the check before creation, and the Events.

A pod gets all its volumes or none, so the claims of a group are checked before any volume is created. What this agent
rejects is known from the claim. What our own driver rejects (access modes, file systems, mount options), its
GetCapacity reports: it gets the capabilities. External drivers are not asked, since many of them reject capabilities in
that call.

Events are on the claim and on its waiting pods. Users look at the pod first, and no other Event is there: the scheduler
has found a node and waits. The Event is repeated while the error lasts, since Events expire. The more claims a pod has,
the longer the interval, for less than one write a minute in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tonnage.base.errors import InvalidError, PreconditionError, TonnageError
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS
from tonnage.kubernetes.api.meta import ObjectReference
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import refer
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.provisioner.state import Creation, FailureReport
from tonnage.provisioning.claims.node_scope import DriverInfo, pod_owner
from tonnage.provisioning.claims.provisioning import capacity_parameters, planned

AGAIN = 250.0
"""Minimum seconds between two Events of the same text."""
_SECONDS_A_CLAIM = 120.0
"""Each claim of a pod emits two Events: on itself and on the pod."""
REASON = "ProvisioningFailed"
_REMEMBERED = 256
_Shape = tuple[str, str, Sequence[VolumeCapability]]


class Feasibility:
    """Checks claims; caches answers by class and capabilities."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._known: dict[_Shape, str] = {}
        node.drivers.on_add(lambda _: self._known.clear())

    async def first_fault(self, claims: Iterable[PersistentVolumeClaim]) -> tuple[PersistentVolumeClaim, str] | None:
        """Return the first infeasible claim and why; bound claims are skipped."""
        for claim in claims:
            if not claim.spec.volume_name and (fault := await self._fault(claim)):
                return claim, failed_text(claim.spec.storage_class_name or "", fault)
        return None

    async def _fault(self, claim: PersistentVolumeClaim) -> str:
        found = class_of(self._node, claim)
        if found is None:
            return ""
        storage_class, driver = found
        try:
            request = await planned(claim, storage_class, driver, self._node.scope, self._node.attributes)
        except (InvalidError, PreconditionError) as reason:
            return str(reason)
        if not (driver.default_pool and driver.lists_capacity):
            return ""
        uids = Creation(claim, driver, storage_class, request).classes
        shape = (driver.identity, uids, request.capabilities)
        if shape not in self._known:
            answer = ""
            try:
                # What a pool can change, it can have from the start: the values are checked as those of its class.
                asked = capacity_parameters(storage_class) | {k: v for k, v in request.mutable.items() if v}
                await driver.client.get_capacity(asked, capabilities=request.capabilities)
            except CsiError as failure:
                if not failure.infeasible:
                    return ""  # another failure of the driver: CreateVolume reports it
                answer = str(failure)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[shape] = answer
        return self._known[shape]


def class_of(node: NodeContext, claim: PersistentVolumeClaim) -> tuple[StorageClass, DriverInfo] | None:
    """Return the claim's class and our driver of it; None if either is missing."""
    found = node.classes.get(claim.spec.storage_class_name or "")
    driver = node.drivers.get(found.provisioner) if found is not None else None
    return (found, driver) if found is not None and driver is not None else None


async def report(node: NodeContext, claim: PersistentVolumeClaim, message: str) -> None:
    """Emit why the claim cannot be served, and repeat it at intervals. Idempotent."""
    if not _is_news(node, claim, message):
        return
    node.events.warning(refer(CLAIMS, claim), REASON, message)
    for pod in await _pods(node, claim):
        node.events.warning(pod, REASON, f"claim {claim.metadata.name}: {message}")


def report_siblings(node: NodeContext, siblings: Iterable[PersistentVolumeClaim], cause: PersistentVolumeClaim) -> None:
    """Emit that these claims wait for another claim of the pod. Idempotent."""
    message = f"no volume is made while claim {cause.metadata.name} of the same pod cannot have one: see its events"
    for claim in siblings:
        if not claim.spec.volume_name and _is_news(node, claim, message):
            node.events.warning(refer(CLAIMS, claim), REASON, message)


def failed_text(storage_class: str, reason: object) -> str:
    """Return external-provisioner's message of a failure."""
    return f'failed to provision volume with StorageClass "{storage_class}": {reason}'


def _is_news(node: NodeContext, claim: PersistentVolumeClaim, message: str) -> bool:
    uid, now = claim.metadata.uid, node.clock.monotonic()
    owner = pod_owner(claim)
    pod, state = owner.uid if owner is not None else uid, node.table.of(uid)
    if state.report is not None and state.report.message == message:
        alike = sum(s.report is not None and s.report.pod == pod for s in node.table.claims.values())
        if now < state.report.at + max(AGAIN, _SECONDS_A_CLAIM * alike):
            return False
    state.remember(FailureReport(pod, message, now))
    return True


async def _pods(node: NodeContext, claim: PersistentVolumeClaim) -> list[ObjectReference]:
    """Return pods that wait for the claim; none if they cannot be read now."""
    meta = claim.metadata
    if (owner := pod_owner(claim)) is not None:
        return [ObjectReference("v1", "Pod", meta.namespace, owner.name, owner.uid)]
    try:
        pods = (await node.client.list(PODS, meta.namespace)).items
    except TonnageError:
        return []
    return [refer(PODS, p) for p in pods if not p.spec.node_name and meta.name in p.claim_names()]
