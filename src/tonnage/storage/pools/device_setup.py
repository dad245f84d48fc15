"""Pool setup: makes pools from devices and extends them.

It makes a plan that people can read, then runs the same commands. It rejects a device that is in use or not empty; it
never wipes one. After a kill at any point, a new plan recognizes what an earlier one made (label, volume group) and
completes it. The commands are those of each kind (kind.DeviceSetup).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tonnage.base.errors import InvalidError, PreconditionError, UnsupportedError, host_errors
from tonnage.host import device
from tonnage.host.descriptor import opened
from tonnage.host.disk import Disk
from tonnage.storage.pools.kind import DeviceSetup, PoolConfig
from tonnage.storage.pools.setup_plan import PoolSetupPlan


def plan_init(config: PoolConfig, devices: Sequence[Path], *, fstype: str = "", data: str = "single") -> PoolSetupPlan:
    """Plan a pool on devices.

    fstype: of an image or quota pool, xfs by default. data: btrfs's data profile (`single`, `raid1`, `raid10`).

    Raises: InvalidError; UnsupportedError for kinds without devices; PreconditionError for a device that is in use or
    not empty.
    """
    if not devices:
        raise InvalidError("name the devices that the pool is made of, as /dev/sdb")
    if len(set(devices)) < len(devices):
        raise InvalidError("the same device is named twice")
    return _setup(config, ": `tonnage driver` starts with it as is").init(config, devices, fstype, data)


def plan_extend(config: PoolConfig, devices: Sequence[Path]) -> PoolSetupPlan:
    """Plan more devices for a pool, or growth into its enlarged devices.

    Raises: InvalidError, UnsupportedError, PreconditionError as plan_init().
    """
    return _setup(config, "").extend(config, devices)


def _setup(config: PoolConfig, hint: str) -> DeviceSetup[Any]:
    if config.kind.setup is None:
        raise UnsupportedError(f"a pool of kind {config.kind} is not made of devices{hint}")
    return config.kind.setup


def check_empty(found: Disk) -> None:
    """Raise PreconditionError unless a device is unused and empty."""
    if found.users:
        raise PreconditionError(f"{found.path} is in use: {'; '.join(found.users)}. Name an unused device")
    kinds = {signature.type for signature in found.signatures}
    with host_errors(f"cannot read {found.path}"), opened(found.node) as fd:
        # wipefs(8) leaves out what has a wrong checksum: that is damaged, which does not make it empty.
        kinds |= {probed.kind for probed in [device.probe(fd)] if probed and not kinds}
    if kinds:
        what = ", ".join(sorted(kinds))
        raise PreconditionError(
            f"{found.path} is not empty: it holds {what}. If nothing on it is needed: wipefs --all {found.node}"
        )
