"""Make pools from devices, and larger ones of them: first a plan that people read, then the same commands run.

A device with users or with anything on it is refused: nothing is ever wiped here. A plan may be made and run again
after a kill at any point: what it made itself (its label, its group) is recognised, and the steps left are done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tonnage.errors import HostError, Invalid, Precondition, Unsupported
from tonnage.host import btrfs, disk, mount
from tonnage.host.disk import Disk
from tonnage.host.run import CommandFailed, run
from tonnage.pools.config import PoolConfig
from tonnage.pools.directory.directory import NOTE

LABEL = "tonnage"
"""Label of the file systems made here: with it on a device, and nothing mounted, an earlier run was ended early."""
_MKFS_TIMEOUT = 3600.0
_METADATA = "16m"  # volumes' records are tags: LVM's own default has room for some 600 of them
_OPTIONS = {"xfs": "prjquota", "ext4": "prjquota", "btrfs": "noatime"}


@dataclass(frozen=True)
class Step:
    """One command of a plan, and what it is for."""

    command: tuple[str, ...]
    purpose: str

    def __str__(self) -> str:
        return " ".join(self.command)


@dataclass(frozen=True)
class Plan:
    """What is to be done, in order; no steps when all is there. next: what a person does afterwards."""

    steps: tuple[Step, ...]
    next: tuple[str, ...] = ()

    def run(self, done: Callable[[Step], None]) -> None:
        """Do the steps; done is called after each. Raises HostError, Precondition; may be planned and run again."""
        for step in self.steps:
            try:
                if step.command[0] == "mkdir":
                    os.makedirs(step.command[-1], mode=0o700, exist_ok=True)
                else:
                    run(step.command, timeout=_MKFS_TIMEOUT)
            except (CommandFailed, OSError) as failure:
                raise HostError(f"{step.purpose}: {failure}") from failure
            done(step)


def plan_init(config: PoolConfig, devices: Sequence[Path], *, fstype: str = "", data: str = "single") -> Plan:
    """How to make a pool of devices. fstype: of an image or quota pool, xfs by default. data: how btrfs spreads data
    over several devices (`single`, `raid1`, `raid10`).

    Raises Invalid, Unsupported for kinds that need none, Precondition for a device that is in use or not empty.
    """
    if not devices:
        raise Invalid("name the devices that the pool is made of, as /dev/sdb")
    if len(set(devices)) < len(devices):
        raise Invalid("the same device is named twice")
    if config.kind == "lvm":
        return _init_group(config, devices)
    if config.kind not in ("btrfs", "image", "quota"):
        raise Unsupported(f"a pool of kind {config.kind} is not made of devices: `tonnage driver` starts with it as is")
    return _init_filesystem(config, devices, _choose(config.kind, fstype, data, len(devices)), data)


def plan_extend(config: PoolConfig, devices: Sequence[Path]) -> Plan:
    """How to give a pool more devices, or without any the room that its own have gained.

    Raises Invalid, Unsupported, Precondition as plan_init().
    """
    if config.kind == "lvm":
        return _extend_group(config, devices)
    if config.kind not in ("btrfs", "image", "quota"):
        raise Unsupported(f"a pool of kind {config.kind} is not made of devices")
    return _extend_filesystem(_place(config), devices)


def _choose(kind: str, fstype: str, data: str, devices: int) -> str:
    offered = {"btrfs": ("btrfs",), "image": ("xfs", "ext4", "btrfs"), "quota": ("xfs", "ext4")}[kind]
    chosen = fstype or offered[0]
    if chosen not in offered:
        raise Invalid(f"--fstype {chosen[:40]!r}: a pool of kind {kind} lies on {' or '.join(offered)}")
    if devices > 1 and chosen != "btrfs":
        raise Invalid(f"{chosen} takes one device, {devices} are named: make a btrfs or lvm pool of them")
    if data not in ("single", "raid1", "raid10"):
        raise Invalid(f"--data {data[:40]!r}: want single, raid1 or raid10")
    return chosen


def _init_group(config: PoolConfig, devices: Sequence[Path]) -> Plan:
    members = _members(config.group)
    disks = [disk.inspect(path) for path in devices]
    missing = [found for found in disks if str(found.node) not in members]
    if members and missing:
        raise Precondition(
            f"volume group {config.group} exists without {missing[0].path}:"
            f" `tonnage pools extend lvm:{config.group} {missing[0].path}` adds it"
        )
    steps = [] if members else _physical(missing)
    if not members:
        command = ("lvm", "vgcreate", config.group, *(str(found.node) for found in disks))
        steps.append(Step(command, f"make volume group {config.group}"))
    return Plan(tuple(steps), (f"tonnage driver --pool {config} ...   # a pool on the group",))


def _extend_group(config: PoolConfig, devices: Sequence[Path]) -> Plan:
    members = _members(config.group)
    if not members:
        raise Precondition(f"there is no volume group {config.group}: `tonnage pools init` makes it")
    if not devices:
        grow = tuple(Step(("lvm", "pvresize", node), f"take the room that {node} gained") for node in members)
        return Plan(grow)
    missing = [found for path in devices if str((found := disk.inspect(path)).node) not in members]
    if not missing:
        return Plan(())
    command = ("lvm", "vgextend", config.group, *(str(found.node) for found in missing))
    return Plan((*_physical(missing), Step(command, f"add to volume group {config.group}")))


def _physical(disks: Sequence[Disk]) -> list[Step]:
    """Steps that make physical volumes; one that a run before us made and that is in no group is taken as it is."""
    steps = []
    for found in disks:
        if _is_free_physical(found):
            continue
        _check_empty(found)
        steps.append(
            Step(
                ("lvm", "pvcreate", "--metadatasize", _METADATA, str(found.node)),
                f"make {found.path} a physical volume",
            )
        )
    return steps


def _is_free_physical(found: Disk) -> bool:
    if found.users or [signature.type for signature in found.signatures] != ["LVM2_member"]:
        return False
    said = run(["lvm", "pvs", "--noheadings", "--options", "vg_name", str(found.node)])
    return not said.strip()


def _members(group: str) -> list[str]:
    """The devices of a volume group, none when there is no such group. Raises HostError."""
    said = run(["lvm", "pvs", "--noheadings", "--separator", "|", "--options", "vg_name,pv_name"], keep=2**20)
    pairs = (line.strip().split("|", 1) for line in said.splitlines() if "|" in line)
    return [os.path.realpath(name) for owner, name in pairs if owner == group]


def _init_filesystem(config: PoolConfig, devices: Sequence[Path], fstype: str, data: str) -> Plan:
    where = _place(config)
    disks = [disk.inspect(path) for path in devices]
    options = _OPTIONS[fstype] if config.kind == "quota" or fstype == "btrfs" else "noatime"
    after = (
        f"{_fstab_source(disks[0])} {where} {fstype} {options},nofail 0 0   # for /etc/fstab: mounted after a restart",
        f"tonnage driver --pool {config} ...   # a pool there",
    )
    if mount.is_mount(where):
        if _shown_at(where) in {str(found.node) for found in disks}:
            return Plan((), after)
        raise Precondition(f"something else is mounted at {where} already: choose another folder")
    if where.exists() and any(entry.name != NOTE for entry in where.iterdir()):
        raise Precondition(f"{where} is not empty: choose another folder, or empty it")
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
    return Plan(tuple(steps), after)


def _mkfs(kind: str, fstype: str, data: str, disks: Sequence[Disk]) -> tuple[str, ...]:
    nodes = [str(found.node) for found in disks]
    if fstype == "btrfs":
        metadata = "dup" if len(nodes) == 1 else "raid1"
        return ("mkfs.btrfs", "--quiet", "--label", LABEL, "--data", data, "--metadata", metadata, *nodes)
    if fstype == "xfs":
        return ("mkfs.xfs", "-q", "-L", LABEL, "-m", "reflink=1", *nodes)
    quotas = ("-O", "quota,project", "-E", "quotatype=prjquota") if kind == "quota" else ()
    return ("mkfs.ext4", "-q", "-L", LABEL, "-m", "0", *quotas, *nodes)


def _extend_filesystem(where: Path, devices: Sequence[Path]) -> Plan:
    shown = next((entry for entry in mount.mounts() if entry.target == str(where)), None)
    if shown is None:
        raise Precondition(f"nothing is mounted at {where}: `tonnage pools init` makes a pool of devices")
    if shown.fstype == "btrfs" and devices:
        disks = [found for path in devices if not _is_member(where, found := disk.inspect(path))]
        for found in disks:
            _check_empty(found)
        if not disks:
            return Plan(())
        nodes = tuple(str(found.node) for found in disks)
        balance = f"btrfs balance start {where}   # spreads what is there over all devices; takes long, may be left out"
        return Plan((Step(("btrfs", "device", "add", *nodes, str(where)), "add to the btrfs"),), (balance,))
    if devices:
        raise Unsupported(f"{shown.fstype} at {where} takes no further device: enlarge its own, then run this without")
    commands = {
        "btrfs": ("btrfs", "filesystem", "resize", "max", str(where)),
        "xfs": ("xfs_growfs", "-d", str(where)),
        "ext4": ("resize2fs", shown.source),
    }
    if shown.fstype not in commands:
        raise Unsupported(f"{where} is a {shown.fstype}, which is not enlarged here")
    return Plan((Step(commands[shown.fstype], f"take the room that the devices of {where} gained"),))


def _is_member(where: Path, found: Disk) -> bool:
    """Whether the btrfs at where has the device already."""
    at = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return Path(f"/sys/fs/btrfs/{btrfs.fsid(at)}/devices/{found.node.name}").exists()
    finally:
        os.close(at)


def _place(config: PoolConfig) -> Path:
    if config.where is None:
        raise Invalid(f"name the folder where the pool is mounted, as {config.kind}:/mnt/fast")
    return config.where


def _shown_at(where: Path) -> str:
    return next((os.path.realpath(entry.source) for entry in mount.mounts() if entry.target == str(where)), "")


def _is_ours(found: Disk, fstype: str) -> bool:
    """Whether an earlier run made the file system, and was ended before it mounted it."""
    kinds = {(signature.type, signature.label) for signature in found.signatures}
    return not found.users and kinds == {(fstype, LABEL)}


def _check_empty(found: Disk) -> None:
    """Raises Precondition unless a device is free and has nothing on it."""
    if found.users:
        raise Precondition(f"{found.path} is in use: {'; '.join(found.users)}. Name a device that nobody uses")
    if found.signatures:
        what = ", ".join(sorted({signature.type for signature in found.signatures}))
        raise Precondition(
            f"{found.path} is not empty: it holds {what}. If nothing on it is needed: wipefs --all {found.node}"
        )


def _fstab_source(found: Disk) -> str:
    """How fstab names the device: by its UUID once it has one, so that another order of disks does no harm."""
    try:
        uuid = run(["blkid", "--match-tag", "UUID", "--output", "value", str(found.node)]).strip()
    except CommandFailed:
        uuid = ""
    return f"UUID={uuid}" if uuid else str(found.path)
