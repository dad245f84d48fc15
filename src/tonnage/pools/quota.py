"""The quota pool: each volume is a directory with a project quota, on an xfs or ext4 that is mounted with `prjquota`.

A write past the limit fails (xfs: ENOSPC, ext4: EDQUOT), `df` in a pod shows the volume's own size. On ext4 processes
with CAP_SYS_RESOURCE, so privileged pods, are not held to any limit: a class must say `allowUnenforced: "true"` to have
volumes there. File systems only, no raw block. Needs root and Linux 5.14, no program.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.errors import Invalid, Unsupported
from tonnage.pools import disks as accounts
from tonnage.pools.base import Capacity
from tonnage.pools.bindstore import LEAST, REFUSED, check_no_erasure
from tonnage.pools.bounds import Bounds
from tonnage.pools.parameters import ERASE, RESERVE, SOURCE
from tonnage.pools.quotastore import FSTYPES, PROJECTS, QuotaStore
from tonnage.pools.storedpool import StoredPool


class QuotaPool(StoredPool[QuotaStore]):
    """Directories with project quotas in directory. fstypes is the one that is there, once the pool is open."""

    kind = "quota"
    fstypes: tuple[str, ...] = FSTYPES
    blocks = False
    expansion = True
    parameters = frozenset({"allowUnenforced", ERASE, RESERVE, SOURCE})
    refused = REFUSED
    least = LEAST

    def __init__(
        self,
        name: str,
        directory: Path,
        bounds: Bounds | None = None,
        *,
        disks: accounts.Disks | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.directory = directory
        self.bounds = bounds or Bounds()
        store = QuotaStore(directory, self.bounds, disks=disks or accounts.SHARED, clock=clock or RealClock())
        super().__init__(name, store)

    async def volume_limit(self) -> int:
        """See Pool: the kernel numbers projects with 32 bits."""
        return PROJECTS

    async def overall(self) -> Capacity:
        """See Pool: also on ext4, where a class must say that quotas do not bind everybody."""
        return await self.capacity_for({"allowUnenforced": "true"}, inline=True)

    async def open(self) -> None:
        """See Pool."""
        await super().open()
        self.fstypes = (self._store.fstype,)

    def check(self, parameters: Mapping[str, str]) -> None:
        """See StoredPool. Raises Unsupported for ext4 without `allowUnenforced`."""
        check_no_erasure(parameters)
        allowed = parameters.get("allowUnenforced", "false")
        if allowed not in ("true", "false"):
            raise Invalid(f"parameter allowUnenforced={allowed[:40]!r}: want true or false")
        if self._store.fstype == "ext4" and allowed != "true":
            raise Unsupported(
                f"pool {self.name!r} is on ext4, which holds no process with CAP_SYS_RESOURCE (no privileged pod) to a"
                ' quota: say allowUnenforced: "true" in the class, or use xfs'
            )
