"""File systems made of devices for pools in a directory, and extended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tonnage.base.errors import InvalidError, PreconditionError, UnsupportedError
from tonnage.host import btrfs, disk, mount
from tonnage.host.disk import Disk
from tonnage.host.run import CommandError, run
from tonnage.storage.pools.device_setup import check_empty
from tonnage.storage.pools.directory.directory import NOTE
from tonnage.storage.pools.kind import PoolConfig
from tonnage.storage.pools.setup_plan import PoolSetupPlan, Step

LABEL = "tonnage"
"""Label of file systems made here.

A device with this label that is not mounted is from an interrupted run."""


def choose(config: PoolConfig, offered: Sequence[str], fstype: str, data: str, devices: int) -> str:
    """Choose among the file systems that a kind offers. Raises: InvalidError."""
    chosen = fstype or offered[0]
    if chosen not in offered:
        raise InvalidError(f"--fstype {chosen[:40]!r}: a pool of kind {config.kind} is on {' or '.join(offered)}")
    if devices > 1 and chosen != "btrfs":
        raise InvalidError(f"{chosen} takes one device, {devices} are named: make a btrfs or lvm pool of them")
    if data not in ("single", "raid1", "raid10"):
        raise InvalidError(f"--data {data[:40]!r}: want single, raid1 or raid10")
    return chosen


def init(config: PoolConfig, devices: Sequence[Path], fstype: str, data: str, *, quotas: bool) -> PoolSetupPlan:
    """Plan a file system on devices, mounted at the pool's directory. Blocking.

    quotas: with project quotas. Raises: InvalidError, PreconditionError, HostError.
    """
    where = _place(config)
    disks = [disk.inspect(path) for path in devices]
    options = "prjquota" if quotas else "noatime"
    after = (
        f"{_fstab_source(disks[0])} {where} {fstype} {options},nofail 0 0   # for /etc/fstab: mounted after a restart",
        f"tonnage driver --pool {config} ...   # a pool there",
    )
    if mount.is_mount(where):
        if _shown_at(where) in {str(found.node) for found in disks}:
            missing = [found.path for found in disks if fstype == "btrfs" and not _is_member(where, found)]
            if missing:
                raise PreconditionError(
                    f"the btrfs at {where} exists without {missing[0]}: `tonnage pools extend {config.kind}:{where}"
                    f" {missing[0]}` adds it"
                )
            return PoolSetupPlan((), after)
        raise PreconditionError(f"something else is mounted at {where} already: choose another folder")
    if where.exists() and any(entry.name != NOTE for entry in where.iterdir()):
        raise PreconditionError(f"{where} is not empty: choose another folder, or empty it")
    steps = []
    if not all(_is_ours(found, fstype) for found in disks):
        for found in disks:
            check_empty(found)
        steps.append(Step(_mkfs(fstype, data, disks, quotas=quotas), f"make the {fstype}"))
    if not where.exists():
        steps.append(Step(("mkdir", "-p", str(where)), f"make {where}"))
    if not (where / NOTE).exists():
        steps.append(Step(("touch", str(where / NOTE)), "so that no pool is made there while the disk is not mounted"))
    steps.append(Step(("mount", "-t", fstype, "-o", options, str(disks[0].node), str(where)), f"mount it at {where}"))
    return PoolSetupPlan(tuple(steps), after)


def _mkfs(fstype: str, data: str, disks: Sequence[Disk], *, quotas: bool) -> tuple[str, ...]:
    nodes = [str(found.node) for found in disks]
    if fstype == "btrfs":
        metadata = "dup" if len(nodes) == 1 else "raid1"
        return ("mkfs.btrfs", "--quiet", "--label", LABEL, "--data", data, "--metadata", metadata, *nodes)
    if fstype == "xfs":
        return ("mkfs.xfs", "-q", "-L", LABEL, "-m", "reflink=1", *nodes)
    options = ("-O", "quota,project", "-E", "quotatype=prjquota") if quotas else ()
    return ("mkfs.ext4", "-q", "-L", LABEL, "-m", "0", *options, *nodes)


def extend(config: PoolConfig, devices: Sequence[Path]) -> PoolSetupPlan:
    """Plan more devices for the file system of a pool, or its growth. Blocking.

    Raises: InvalidError, UnsupportedError, PreconditionError, HostError.
    """
    where = _place(config)
    shown = next((entry for entry in mount.mounts() if entry.target == str(where)), None)
    if shown is None:
        raise PreconditionError(f"nothing is mounted at {where}: `tonnage pools init` makes a pool of devices")
    if shown.fstype == "btrfs" and devices:
        disks = [found for path in devices if not _is_member(where, found := disk.inspect(path))]
        for found in disks:
            check_empty(found)
        if not disks:
            return PoolSetupPlan(())
        nodes = tuple(str(found.node) for found in disks)
        balance = f"btrfs balance start {where}   # spreads what is there over all devices; takes long, may be left out"
        return PoolSetupPlan((Step(("btrfs", "device", "add", *nodes, str(where)), "add to the btrfs"),), (balance,))
    if devices:
        raise UnsupportedError(
            f"{shown.fstype} at {where} takes no further device: enlarge its own, then run this without"
        )
    commands = {
        "btrfs": ("btrfs", "filesystem", "resize", "max", str(where)),
        "xfs": ("xfs_growfs", "-d", str(where)),
        "ext4": ("resize2fs", shown.source),
    }
    if shown.fstype not in commands:
        raise UnsupportedError(f"{where} is a {shown.fstype}, which is not enlarged here")
    return PoolSetupPlan((Step(commands[shown.fstype], f"use the new size of the devices of {where}"),))


def _is_member(where: Path, found: Disk) -> bool:
    """Return whether the btrfs at `where` has the device already."""
    at = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return Path(f"/sys/fs/btrfs/{btrfs.fsid(at)}/devices/{found.node.name}").exists()
    finally:
        os.close(at)


def _place(config: PoolConfig) -> Path:
    if config.where is None:
        raise InvalidError(f"name the folder where the pool is mounted, as {config.kind}:/mnt/fast")
    return config.where


def _shown_at(where: Path) -> str:
    return next((os.path.realpath(entry.source) for entry in mount.mounts() if entry.target == str(where)), "")


def _is_ours(found: Disk, fstype: str) -> bool:
    """Return whether an interrupted run made the file system and did not mount it."""
    kinds = {(signature.type, signature.label) for signature in found.signatures}
    return not found.users and kinds == {(fstype, LABEL)}


def _fstab_source(found: Disk) -> str:
    """Return the device's name for fstab: its UUID if it has one.

    A UUID stays valid when the order of disks changes.
    """
    try:
        uuid = run(["blkid", "--match-tag", "UUID", "--output", "value", str(found.node)]).strip()
    except CommandError:
        uuid = ""
    return f"UUID={uuid}" if uuid else str(found.path)
