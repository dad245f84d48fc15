"""Writable layers of inline drivers: volumes of the driver's pools, each as long as its pod.

Used by inline drivers that show trees. A layer counts as an inline volume: it may use the inline capacity, and no sweep
takes it for an orphan.
"""

from __future__ import annotations

from pathlib import Path

from tonnage.base.errors import ExhaustedError, OutOfRangeError
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.parameters import choose_fstype, is_fstype, select
from tonnage.csi.inline.base import InlinePod, WritableLayer
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import INLINE, VolumeRequest
from tonnage.storage.pools.base.parameters import LIMITS, POOL, SOURCE

_NOT_OF_LAYERS = LIMITS | {SOURCE}


class PoolLayers:
    """Makes and removes layers."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def accepts(self, key: str) -> bool:
        """Whether a key of volumeAttributes is a parameter of a pool."""
        known = set[str]().union(*(pool.features.parameters for pool in self._driver.pools.values()))
        return is_fstype(key) or (key in known and key not in _NOT_OF_LAYERS)

    async def make(self, name: str, layer: WritableLayer, staging: Path, pod: InlinePod) -> None:
        """Make a pod's volume of that name and stage it. Idempotent.

        Raises: as Pool.create and Pool.stage, InvalidError. One that does not fit is reported, as all inline volumes.
        """
        chosen = select(self._driver, {**layer.parameters, **({POOL: layer.pool} if layer.pool else {})})
        pool = chosen.pool
        self._driver.check_open(pool)
        fstype = choose_fstype(pool, chosen.fstype, block=False)
        owner = {**chosen.owner, INLINE: "true"}
        try:
            await pool.create(VolumeRequest(name, layer.size, fstype=fstype, parameters=chosen.parameters, owner=owner))
        except (ExhaustedError, OutOfRangeError) as reason:
            about = {names.CSI_POD_NAMESPACE: pod.namespace, names.CSI_POD_NAME: pod.name, names.CSI_POD_UID: pod.uid}
            self._driver.hooks.unfit(about, str(reason))
            raise
        finally:  # where it did not fit, the scheduler used older capacity
            self._driver.hooks.capacity_changed()
        await pool.stage(name, staging)

    async def remove(self, name: str, staging: Path) -> None:
        """Unstage and delete the volume, in whichever pool it is. Idempotent. Raises: as Pool.unstage, delete."""
        found = await self._driver.find_inline(name)
        pool = found[0] if found is not None else self._driver.first_pool
        await pool.unstage(name, staging)
        if found is not None:
            await pool.delete(name)
            self._driver.hooks.capacity_changed()
