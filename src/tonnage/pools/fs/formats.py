"""File system formats of images: the image's length for a usable size, and the mkfs commands.

If a class asks for 4Gi, the pod must be able to write 4Gi, and the file system needs an overhead on top. The overhead
of ext4 is computed from its layout, block by block. For xfs and btrfs it is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from msgspec import structs

from tonnage.pools.base import mkfs_options as mkfs
from tonnage.pools.base.mkfs_options import NONE, MkfsOptions
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.fs import ext4_layout

MI = 1024**2
GI = 1024**3
BLOCK = ext4_layout.BLOCK


@dataclass(frozen=True)
class Format:
    """A file system format. least: minimum usable size in bytes. options: mkfsOptions of the class."""

    name: str
    least: int
    command: str
    options: MkfsOptions = NONE

    def made_with(self, text: str) -> Format:
        """The same format with a class's mkfsOptions. Raises Invalid for options that are not allowed."""
        options = mkfs.read(self.name, text)
        least = max(self.least, options.inodes * BLOCK)  # ext4 has at most one inode for each block
        made = replace(self, options=options)
        if made.has_large_nodes:
            least = max(least, _BTRFS_LARGE_NODES)  # smaller ones must mix data and metadata, in nodes of one sector
        return replace(made, least=least)

    @property
    def has_large_nodes(self) -> bool:
        """Whether a class asks for btrfs nodes of more than a sector."""
        words = self.options.words if self.name == "btrfs" else ()
        return any(name == "-n" and value not in ("4096", "4k") for name, value in words)

    def length(self, usable: int) -> int:
        """Minimum length of the image in bytes, a multiple of 4096, for `usable` bytes."""
        if self.name == "ext4":
            return ext4_layout.length(usable, options=self.options)
        return _xfs_length(usable) if self.name == "xfs" else _btrfs_length(usable)

    def grown(self, usable: int, made: int) -> int:
        """Length for a file system that was made for an image of `made` bytes and grows: mkfs's choices stay."""
        if self.name == "btrfs" and self.length(usable) > made:
            return max(_BTRFS_GROWN, self.length(usable))
        if self.name != "ext4":
            return max(made, self.length(usable))
        return max(made, ext4_layout.length(usable, made=made, options=self.options))

    def usable(self, length: int) -> int:
        """Maximum usable size, a multiple of 4096, for an image of `length` bytes; 0 for none."""
        low, high = 0, length // BLOCK
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.length(middle * BLOCK) <= length else (low, middle - 1)
        return low * BLOCK

    def mkfs(self, path: str, length: int, uuid: UUID, *, prezeroed: bool = True) -> list[str]:
        """The mkfs command for a pristine file (all zero) of that length.

        prezeroed: pass assume_storage_prezeroed, which mkfs.ext4 of e2fsprogs before 1.47 does not understand.
        """
        if self.name == "ext4":
            return ext4_layout.mkfs(path, length, uuid, prezeroed=prezeroed, options=self.options)
        more = [word for pair in self.options.words for word in pair]
        if self.name == "xfs":
            # An image below 300 MiB is never made; the log's size is fixed so that length() can count it.
            options = [
                "-q",
                "-f",
                "-K",
                "-s",
                "size=4096",
                "-m",
                f"uuid={uuid},rmapbt=0",
                "-l",
                f"size={_xfs_log(length)}",
            ]
            return ["mkfs.xfs", *options, *more, path]
        mixed = ["--mixed"] if length < _BTRFS_MIXED and not self.has_large_nodes else []
        profiles = ["-m", "single", "-d", "single", *mixed]
        return ["mkfs.btrfs", "-q", "-f", "-K", *profiles, *more, "-U", str(uuid), path]


_XFS_LEAST = 300 * MI
_BTRFS_LEAST = 16 * MI
# Apart, data may take what metadata needs before it is known: 1.2Gi were full at 94 % (mkfs.btrfs(8), --mixed).
_BTRFS_MIXED = 5 * GI
_BTRFS_LARGE_NODES = 256 * MI
_BTRFS_GROWN = 256 * MI  # the kernel refuses to make one larger that stays below this


def _xfs_log(length: int) -> int:
    return 64 * MI if length < 64 * GI else 512 * MI


def _xfs_length(usable: int) -> int:
    length = max(_XFS_LEAST, usable + 64 * MI + 32 * MI + usable // 100)
    if length >= 64 * GI:
        length += 448 * MI
    return _round(length)


def _btrfs_length(usable: int) -> int:
    return _round(max(128 * MI, usable + usable // 16 + 64 * MI))


def _round(length: int) -> int:
    return ext4_layout.ceil(length, BLOCK) * BLOCK


EXT4 = Format("ext4", MI, "mkfs.ext4")
XFS = Format("xfs", _XFS_LEAST, "mkfs.xfs")
BTRFS = Format("btrfs", _BTRFS_LEAST, "mkfs.btrfs")
FORMATS = {form.name: form for form in (EXT4, XFS, BTRFS)}


def form_of(fstype: str, options: str = "") -> Format:
    """The format that a class asks for. options: its mkfsOptions. Raises Invalid."""
    return FORMATS[fstype].made_with(options) if options else FORMATS[fstype]


def length_of(record: VolumeRecord, size: int) -> int:
    """Bytes of the image or device for `size` usable bytes, of a volume that grows, or of a copy of it."""
    if record.block:
        return size
    form = form_of(record.fstype, record.mkfs)
    if record.state == "new":
        return max(record.length, form.length(size))
    return max(record.length, form.grown(size, record.made or record.length))


def enlarged(record: VolumeRecord, size: int, *, is_used: bool) -> VolumeRecord:
    """The record of a volume that is expanded to `size` bytes; the file system of a used one has yet to grow."""
    made = (record.made or record.length) if is_used else 0
    return structs.replace(record, size=size, length=length_of(record, size), made=made, pending=is_used)
