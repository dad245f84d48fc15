"""The kinds of pools and volumes that are killed over, and the file systems that these pools are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.kills.machine import MI, Machine, lvm_volumes, namespaces, projects, qgroups

from tonnage.csi._proto import csi_pb2
from tonnage.host import loop, mount
from tonnage.host.run import run
from tonnage.storage.pools.base.record import UNDELETE

UML, QEMU = "uml", "qemu"
_MODE = csi_pb2.VolumeCapability.AccessMode(mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)


@dataclass(frozen=True)
class Kind:
    """A kind of pool and of volume. pool: its description for --pool, {home} is a folder. size: MiB of a volume.
    disk: the mkfs command of the file system that the home is on, none for the test's folder itself; given: MiB of it.
    options: of its mount. device: the disk, "" for a file of the test's. parameters: of the class; changes: of a volume, later. copies: whether there
    are snapshots and clones. grows: whether volumes can be expanded; grows_first: not while they have snapshots and are in use. inline: whether pods can have volumes of their own.
    larger: MiB of a volume that trash of the first one has to make way for, 0 for kinds without trash.
    waits: whether a driver waits for any tool of its predecessor, so that none may be held. guest: what it runs in, UML
    (user-mode Linux) or QEMU, "" for the machine itself."""

    pool: str
    block: bool = False
    fstype: str = ""
    size: int = 16
    disk: Sequence[str] = ()
    given: int = 600
    options: Sequence[str] = ()
    device: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    copies: bool = True
    grows: bool = True
    grows_first: bool = False
    larger: int = 0
    waits: bool = False
    inline: bool = True
    guest: str = ""
    programs: Sequence[str] = ("mkfs.ext4",)

    @property
    def capability(self) -> csi_pb2.VolumeCapability:
        """What is asked for."""
        if self.block:
            return csi_pb2.VolumeCapability(access_mode=_MODE, block=csi_pb2.VolumeCapability.BlockVolume())
        shown = csi_pb2.VolumeCapability.MountVolume(fs_type=self.fstype)
        return csi_pb2.VolumeCapability(access_mode=_MODE, mount=shown)

    def describe(self, home: Path) -> str:
        """For --pool."""
        return self.pool.format(home=home)

    def prepare(self, folder: Path) -> Machine:
        """Make what is under the pool. folder: an empty one of the test's own."""
        home = folder / "pool"
        if self.disk:
            home = _mounted(folder, self) / "pool"
        machine = Machine(folder, home)
        if self.pool.startswith("btrfs:"):
            machine.more.append(qgroups)
        if self.pool.startswith("quota:"):
            machine.more.append(projects)
        if self.pool.startswith("static:"):
            home.mkdir()
            for size in (20, 60):
                (home / f"disk{size}").mkdir()
                mount.mount("disk", home / f"disk{size}", "tmpfs", [f"size={size}m"])
        if self.pool.startswith("lvm:"):
            run(["lvm", "vgcreate", "--quiet", "vg0", "/dev/ubda", "/dev/ubdb"])
            machine.more.append(lvm_volumes)
        if self.pool.startswith("pmem:"):
            for words in ("disable-region",), ("init-labels", "--force"), ("enable-region",):
                run(["ndctl", *words, "all"])
            machine.more.append(namespaces)
        return machine


def _mounted(folder: Path, kind: Kind) -> Path:
    disk, image = folder / "disk", folder / "disk.img"
    disk.mkdir()
    options = ("nodev", *kind.options)
    if kind.device:
        run([*kind.disk, kind.device])
        mount.mount(kind.device, disk, kind.disk[0].removeprefix("mkfs."), options)
        return disk
    with open(image, "wb") as file:
        file.truncate(kind.given * MI)
    run([*kind.disk, str(image)])
    with open(image, "r+b") as file:
        attached = loop.attach(file.fileno(), str(image))
    try:
        mount.mount(attached.path, disk, kind.disk[0].removeprefix("mkfs."), options)
    finally:
        attached.close()
    return disk


_SPARSE = "image:{home},name=p,size=2Gi,sparse=yes,overcommit=yes"
_XFS = ("mkfs.xfs", "-q", "-f", "-K", "-s", "size=4096")
_EXT4 = ("mkfs.ext4", "-q", "-F", "-O", "quota,project")
_STAYS = {UNDELETE: "86400"}
_UNENFORCED = {"allowUnenforced": "true"}
KINDS: Mapping[str, Kind] = {
    "image sparse": Kind(_SPARSE, changes={"iops": "1000"}),
    "image erasing": Kind(f"{_SPARSE},eraserate=0", parameters={"erase": "zero"}, changes={"erase": "shred"}),
    "image thick": Kind("image:{home},name=p,size=200Mi", disk=("mkfs.ext4", "-q", "-F")),
    "image block": Kind(_SPARSE, block=True, inline=False, disk=_XFS, given=1024, programs=("mkfs.xfs",)),
    "image reflink": Kind(_SPARSE, disk=_XFS, given=1024, programs=("mkfs.ext4", "mkfs.xfs")),
    "image xfs": Kind(_SPARSE, fstype="xfs", size=304, inline=False, programs=("mkfs.xfs",)),
    "image btrfs": Kind(_SPARSE, fstype="btrfs", size=128, inline=False, programs=("mkfs.btrfs",)),
    "btrfs": Kind("btrfs:{home},name=p,size=300Mi,overcommit=yes", disk=("mkfs.btrfs", "-q"), programs=("mkfs.btrfs",)),
    "btrfs in an image": Kind("btrfs:{home},name=p,size=300Mi,sparse=yes,overcommit=yes", programs=("mkfs.btrfs",)),
    "image trash": Kind(
        "image:{home},name=p,size=100Mi,sparse=yes", disk=("mkfs.ext4", "-q", "-F"), parameters=_STAYS, larger=90,
    ),
    "btrfs trash": Kind(
        "btrfs:{home},name=p,size=100Mi", disk=("mkfs.btrfs", "-q"), parameters=_STAYS, larger=90, programs=("mkfs.btrfs",),
    ),
    "static": Kind("static:{home},name=p", copies=False, grows=False, programs=()),
    "quota xfs": Kind(
        "quota:{home},name=p,size=300Mi,overcommit=yes", disk=_XFS, options=("prjquota",), device="/dev/ubda",
        copies=False, guest=UML, parameters=_UNENFORCED,
    ),
    "quota ext4": Kind(
        "quota:{home},name=p,size=300Mi,overcommit=yes", disk=_EXT4, options=("prjquota",), device="/dev/ubda",
        copies=False, guest=UML, parameters=_UNENFORCED,
    ),
    "lvm thick": Kind(
        "lvm:vg0,name=p", guest=UML, inline=False, grows_first=True, waits=True, programs=("lvm", "mkfs.ext4"),
    ),
    "lvm thin": Kind(
        "lvm:vg0,name=p,thin=thin,thinsize=1Gi", guest=UML, inline=False, waits=True, programs=("lvm", "mkfs.ext4"),
    ),
    "lvm thick trash": Kind(
        "lvm:vg0,name=p,size=100Mi", guest=UML, inline=False, waits=True, parameters=_STAYS, larger=90,
        programs=("lvm", "mkfs.ext4"),
    ),
    "lvm thin trash": Kind(
        "lvm:vg0,name=p,thin=thin,thinsize=120Mi", guest=UML, inline=False, waits=True, parameters=_STAYS, larger=90,
        programs=("lvm", "mkfs.ext4"),
    ),
    "pmem": Kind(
        "pmem:region0,name=p,eraserate=0", parameters={"erase": "zero"}, guest=QEMU, copies=False, grows=False,
        inline=False, waits=True, programs=("ndctl", "mkfs.ext4"),
    ),
    "pmem trash": Kind(
        "pmem:region0,name=p,size=100Mi", guest=QEMU, copies=False, grows=False, inline=False, waits=True,
        parameters=_STAYS, larger=90, programs=("ndctl", "mkfs.ext4"),
    ),
}  # fmt: skip
NATIVE = [name for name, kind in KINDS.items() if not kind.guest]
GUESTS = [name for name, kind in KINDS.items() if kind.guest]
