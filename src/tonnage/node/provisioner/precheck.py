"""Feasibility check of a claim, before any volume of its pod is created.

A pod gets all its volumes or none. What this agent rejects is known from the claim. What our own driver rejects (access
modes, file systems, mount options), its GetCapacity reports: it gets the capabilities. External drivers are not asked,
since many of them reject capabilities in that call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.storage import StorageClass
from tonnage.claims.create_request import ClaimRequest, capacity_parameters, plan
from tonnage.claims.node_scope import DriverInfo, NodeScope
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.errors import CsiError
from tonnage.errors import Invalid
from tonnage.kube.cache import Cache
from tonnage.node.driver_set import DriverSet

_REMEMBERED = 256
_Shape = tuple[str, str, Sequence[VolumeCapability]]


class Feasibility:
    """Checks claims; caches answers by class and capabilities."""

    def __init__(self, classes: Cache[StorageClass], drivers: DriverSet, scope: NodeScope) -> None:
        self._classes, self._drivers, self._scope = classes, drivers, scope
        self._known: dict[_Shape, str] = {}
        drivers.on_add(lambda _: self._known.clear())

    async def first_fault(self, claims: Iterable[PersistentVolumeClaim]) -> tuple[PersistentVolumeClaim, str] | None:
        """Return the first infeasible claim and why; bound claims are skipped."""
        for claim in claims:
            if not claim.spec.volume_name and (fault := await self._fault(claim)):
                name = claim.spec.storage_class_name
                return claim, f'failed to provision volume with StorageClass "{name}": {fault}'
        return None

    async def _fault(self, claim: PersistentVolumeClaim) -> str:
        storage_class = self._classes.get(claim.spec.storage_class_name or "")
        driver = self._drivers.get(storage_class.provisioner) if storage_class is not None else None
        if storage_class is None or driver is None:
            return ""
        try:
            request = plan(claim, storage_class, driver, self._scope)
        except Invalid as reason:
            return str(reason)
        if not (driver.default_pool and driver.lists_capacity):
            return ""
        shape = (driver.identity, storage_class.metadata.uid, request.capabilities)
        if shape not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            answer = await _ask(driver, storage_class, request)
            if answer is None:
                return ""  # another failure of the driver: CreateVolume reports it
            self._known[shape] = answer
        return self._known[shape]


async def _ask(driver: DriverInfo, storage_class: StorageClass, request: ClaimRequest) -> str | None:
    """Return why the driver would reject such volumes.

    "" if it would not, None if it does not report it.
    """
    try:
        await driver.client.get_capacity(capacity_parameters(storage_class), capabilities=request.capabilities)
    except CsiError as failure:
        return str(failure) if failure.infeasible else None
    return ""
