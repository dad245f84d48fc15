"""Volume groups made of devices, and extended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tonnage.base.errors import PreconditionError
from tonnage.host import disk
from tonnage.host.disk import Disk
from tonnage.host.run import run
from tonnage.storage.pools.device_setup import check_empty
from tonnage.storage.pools.kind import PoolConfig
from tonnage.storage.pools.setup_plan import PoolSetupPlan, Step

_METADATA = "16m"  # volumes' records are tags: LVM's default size holds some 600 of them


def init(config: PoolConfig, devices: Sequence[Path]) -> PoolSetupPlan:
    """Plan a volume group on devices. Blocking. Raises: PreconditionError, HostError."""
    members = _members(config.place)
    disks = [disk.inspect(path) for path in devices]
    missing = [found for found in disks if str(found.node) not in members]
    if members and missing:
        raise PreconditionError(
            f"volume group {config.place} exists without {missing[0].path}:"
            f" `tonnage pools extend lvm:{config.place} {missing[0].path}` adds it"
        )
    command = ("lvm", "vgcreate", config.place, *(str(found.node) for found in disks))
    steps = [] if members else [*_physical(missing), Step(command, f"make volume group {config.place}")]
    return PoolSetupPlan(tuple(steps), (f"tonnage driver --pool {config} ...   # a pool on the group",))


def extend(config: PoolConfig, devices: Sequence[Path]) -> PoolSetupPlan:
    """Plan more devices for a volume group, or growth into those that it has. Blocking.

    Raises: PreconditionError, HostError.
    """
    members = _members(config.place)
    if not members:
        raise PreconditionError(f"there is no volume group {config.place}: `tonnage pools init` makes it")
    if not devices:
        grow = tuple(Step(("lvm", "pvresize", node), f"use the new size of {node}") for node in members)
        return PoolSetupPlan(grow)
    missing = [found for path in devices if str((found := disk.inspect(path)).node) not in members]
    if not missing:
        return PoolSetupPlan(())
    command = ("lvm", "vgextend", config.place, *(str(found.node) for found in missing))
    return PoolSetupPlan((*_physical(missing), Step(command, f"add to volume group {config.place}")))


def _physical(disks: Sequence[Disk]) -> list[Step]:
    """Return steps that make physical volumes.

    One that an earlier run made and that is in no volume group is used as it is.
    """
    steps = []
    for found in disks:
        if _is_free_physical(found):
            continue
        check_empty(found)
        command = ("lvm", "pvcreate", "--metadatasize", _METADATA, str(found.node))
        steps.append(Step(command, f"make {found.path} a physical volume"))
    return steps


def _is_free_physical(found: Disk) -> bool:
    if found.users or [signature.type for signature in found.signatures] != ["LVM2_member"]:
        return False
    said = run(["lvm", "pvs", "--noheadings", "--options", "vg_name", str(found.node)])
    return not said.strip()


def _members(group: str) -> list[str]:
    """Return the devices of a volume group; none without such a group. Raises: HostError."""
    said = run(["lvm", "pvs", "--noheadings", "--separator", "|", "--options", "vg_name,pv_name"], keep=2**20)
    pairs = (line.strip().split("|", 1) for line in said.splitlines() if "|" in line)
    return [os.path.realpath(name) for owner, name in pairs if owner == group]
