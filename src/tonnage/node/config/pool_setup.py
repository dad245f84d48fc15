"""Pool setup: makes pools from devices and extends them.

It makes a plan that people can read, then runs the same commands. It rejects a device that is in use or not empty; it
never wipes one. After a kill at any point, a new plan recognizes what an earlier one made (label, volume group) and
completes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tonnage.errors import HostError, InvalidError, PreconditionError, UnsupportedError, host_errors
from tonnage.host import btrfs, device, disk, mount
from tonnage.host.descriptor import opened
from tonnage.host.disk import Disk
from tonnage.host.run import CommandError, run
from tonnage.pools.config import PoolConfig
from tonnage.pools.directory.directory import NOTE

LABEL = "tonnage"
"""Label of file systems made here.

A device with this label that is not mounted is from an interrupted run."""
_MKFS_TIMEOUT = 3600.0
_METADATA = "16m"  # volumes' records are tags: LVM's default size holds some 600 of them
_OPTIONS = {"xfs": "prjquota", "ext4": "prjquota", "btrfs": "noatime"}


@dataclass(frozen=True)
class Step:
    """One command of a plan, and its purpose."""

    command: tuple[str, ...]
    purpose: str

    def __str__(self) -> str:
        return " ".join(self.command)


@dataclass(frozen=True)
class PoolSetupPlan:
    """Ordered steps; none when the pool is complete.

    next: what a person does afterwards.
    """

    steps: tuple[Step, ...]
    next: tuple[str, ...] = ()

    def run(self, done: Callable[[Step], None]) -> None:
        """Run the steps; call done after each. Blocking.

        After a failure, plan and run again.

        Raises: HostError, Precondition.
        """
        for step in self.steps:
            try:
                if step.command[0] == "mkdir":
                    os.makedirs(step.command[-1], mode=0o700, exist_ok=True)
                else:
                    run(step.command, timeout=_MKFS_TIMEOUT)
            except (CommandError, OSError) as failure:
                raise HostError(f"{step.purpose}: {failure}") from failure
            done(step)


def plan_init(config: PoolConfig, devices: Sequence[Path], *, fstype: str = "", data: str = "single") -> PoolSetupPlan:
    """Plan a pool on devices.

    fstype: of an image or quota pool, xfs by default. data: btrfs's data profile (`single`, `raid1`, `raid10`).

    Raises: Invalid; Unsupported for kinds without devices; Precondition for a device that is in use or not empty.
    """
    if not devices:
        raise InvalidError("name the devices that the pool is made of, as /dev/sdb")
    if len(set(devices)) < len(devices):
        raise InvalidError("the same device is named twice")
    if config.kind == "lvm":
        return _init_group(config, devices)
    if config.kind not in ("btrfs", "image", "quota"):
        raise UnsupportedError(
            f"a pool of kind {config.kind} is not made of devices: `tonnage driver` starts with it as is"
        )
    return _init_filesystem(config, devices, _choose(config.kind, fstype, data, len(devices)), data)


def plan_extend(config: PoolConfig, devices: Sequence[Path]) -> PoolSetupPlan:
    """Plan more devices for a pool, or growth into its enlarged devices.

    Raises: Invalid, Unsupported, Precondition as plan_init().
    """
    if config.kind == "lvm":
        return _extend_group(config, devices)
    if config.kind not in ("btrfs", "image", "quota"):
        raise UnsupportedError(f"a pool of kind {config.kind} is not made of devices")
    return _extend_filesystem(_place(config), devices)


def _choose(kind: str, fstype: str, data: str, devices: int) -> str:
    offered = {"btrfs": ("btrfs",), "image": ("xfs", "ext4", "btrfs"), "quota": ("xfs", "ext4")}[kind]
    chosen = fstype or offered[0]
    if chosen not in offered:
        raise InvalidError(f"--fstype {chosen[:40]!r}: a pool of kind {kind} is on {' or '.join(offered)}")
    if devices > 1 and chosen != "btrfs":
        raise InvalidError(f"{chosen} takes one device, {devices} are named: make a btrfs or lvm pool of them")
    if data not in ("single", "raid1", "raid10"):
        raise InvalidError(f"--data {data[:40]!r}: want single, raid1 or raid10")
    return chosen


def _init_group(config: PoolConfig, devices: Sequence[Path]) -> PoolSetupPlan:
    members = _members(config.group)
    disks = [disk.inspect(path) for path in devices]
    missing = [found for found in disks if str(found.node) not in members]
    if members and missing:
        raise PreconditionError(
            f"volume group {config.group} exists without {missing[0].path}:"
            f" `tonnage pools extend lvm:{config.group} {missing[0].path}` adds it"
        )
    command = ("lvm", "vgcreate", config.group, *(str(found.node) for found in disks))
    steps = [] if members else [*_physical(missing), Step(command, f"make volume group {config.group}")]
    return PoolSetupPlan(tuple(steps), (f"tonnage driver --pool {config} ...   # a pool on the group",))


def _extend_group(config: PoolConfig, devices: Sequence[Path]) -> PoolSetupPlan:
    members = _members(config.group)
    if not members:
        raise PreconditionError(f"there is no volume group {config.group}: `tonnage pools init` makes it")
    if not devices:
        grow = tuple(Step(("lvm", "pvresize", node), f"use the new size of {node}") for node in members)
        return PoolSetupPlan(grow)
    missing = [found for path in devices if str((found := disk.inspect(path)).node) not in members]
    if not missing:
        return PoolSetupPlan(())
    command = ("lvm", "vgextend", config.group, *(str(found.node) for found in missing))
    return PoolSetupPlan((*_physical(missing), Step(command, f"add to volume group {config.group}")))


def _physical(disks: Sequence[Disk]) -> list[Step]:
    """Return steps that make physical volumes.

    One that an earlier run made and that is in no volume group is used as it is.
    """
    steps = []
    for found in disks:
        if _is_free_physical(found):
            continue
        _check_empty(found)
        command = ("lvm", "pvcreate", "--metadatasize", _METADATA, str(found.node))
        steps.append(Step(command, f"make {found.path} a physical volume"))
    return steps


def _is_free_physical(found: Disk) -> bool:
    if found.users or [signature.type for signature in found.signatures] != ["LVM2_member"]:
        return False
    said = run(["lvm", "pvs", "--noheadings", "--options", "vg_name", str(found.node)])
    return not said.strip()


def _members(group: str) -> list[str]:
    """Return the devices of a volume group; none without such a group. Raises HostError."""
    said = run(["lvm", "pvs", "--noheadings", "--separator", "|", "--options", "vg_name,pv_name"], keep=2**20)
    pairs = (line.strip().split("|", 1) for line in said.splitlines() if "|" in line)
    return [os.path.realpath(name) for owner, name in pairs if owner == group]


def _init_filesystem(config: PoolConfig, devices: Sequence[Path], fstype: str, data: str) -> PoolSetupPlan:
    where = _place(config)
    disks = [disk.inspect(path) for path in devices]
    options = _OPTIONS[fstype] if config.kind == "quota" or fstype == "btrfs" else "noatime"
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
            _check_empty(found)
        steps.append(Step(_mkfs(config.kind, fstype, data, disks), f"make the {fstype}"))
    if not where.exists():
        steps.append(Step(("mkdir", "-p", str(where)), f"make {where}"))
    if not (where / NOTE).exists():
        steps.append(Step(("touch", str(where / NOTE)), "so that no pool is made there while the disk is not mounted"))
    steps.append(Step(("mount", "-t", fstype, "-o", options, str(disks[0].node), str(where)), f"mount it at {where}"))
    return PoolSetupPlan(tuple(steps), after)


def _mkfs(kind: str, fstype: str, data: str, disks: Sequence[Disk]) -> tuple[str, ...]:
    nodes = [str(found.node) for found in disks]
    if fstype == "btrfs":
        metadata = "dup" if len(nodes) == 1 else "raid1"
        return ("mkfs.btrfs", "--quiet", "--label", LABEL, "--data", data, "--metadata", metadata, *nodes)
    if fstype == "xfs":
        return ("mkfs.xfs", "-q", "-L", LABEL, "-m", "reflink=1", *nodes)
    quotas = ("-O", "quota,project", "-E", "quotatype=prjquota") if kind == "quota" else ()
    return ("mkfs.ext4", "-q", "-L", LABEL, "-m", "0", *quotas, *nodes)


def _extend_filesystem(where: Path, devices: Sequence[Path]) -> PoolSetupPlan:
    shown = next((entry for entry in mount.mounts() if entry.target == str(where)), None)
    if shown is None:
        raise PreconditionError(f"nothing is mounted at {where}: `tonnage pools init` makes a pool of devices")
    if shown.fstype == "btrfs" and devices:
        disks = [found for path in devices if not _is_member(where, found := disk.inspect(path))]
        for found in disks:
            _check_empty(found)
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


def _check_empty(found: Disk) -> None:
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


def _fstab_source(found: Disk) -> str:
    """Return the device's name for fstab: its UUID if it has one.

    A UUID stays valid when the order of disks changes.
    """
    try:
        uuid = run(["blkid", "--match-tag", "UUID", "--output", "value", str(found.node)]).strip()
    except CommandError:
        uuid = ""
    return f"UUID={uuid}" if uuid else str(found.path)
