"""File systems in images: how long the image must be so that a size asked is a size usable, and how to make them.

A class asks for 4Gi and the pod must be able to write 4Gi; a file system needs room for itself on top. ext4's is
computed from its layout, block by block; for xfs and btrfs it is a bound from above.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

MI = 1024**2
GI = 1024**3
BLOCK = 4096
_GROUP = 32768  # blocks in a block group: one block of bitmap
_INODE = 256


@dataclass(frozen=True)
class Format:
    """One file system. least: the smallest usable size in bytes."""

    name: str
    least: int
    command: str

    def length(self, usable: int) -> int:
        """The length of the image in bytes, a multiple of 4096, so that at least `usable` bytes can be used."""
        return _LENGTHS[self.name](usable)

    def grown(self, usable: int, made: int) -> int:
        """The same for a file system that was made for an image of `made` bytes and grows: what mkfs chose stays."""
        if self.name != "ext4":
            return max(made, self.length(usable))
        return max(made, _ext4_length(usable, made=made // BLOCK))

    def usable(self, length: int) -> int:
        """The largest usable size, a multiple of 4096, whose image is at most `length` bytes; 0 when none is."""
        low, high = 0, length // BLOCK
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.length(middle * BLOCK) <= length else (low, middle - 1)
        return low * BLOCK

    def mkfs(self, path: str, length: int, uuid: UUID, *, prezeroed: bool = True) -> list[str]:
        """The command that makes this file system on a pristine file (all zero) of that length.

        prezeroed: tell mkfs.ext4 so, which e2fsprogs before 1.47 does not understand.
        """
        if self.name == "ext4":
            return _mkfs_ext4(path, length, uuid, "assume_storage_prezeroed" if prezeroed else "lazy_itable_init")
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
            return ["mkfs.xfs", *options, path]
        mixed = ["--mixed"] if length < _BTRFS_MIXED else []
        return ["mkfs.btrfs", "-q", "-f", "-K", "-m", "single", "-d", "single", *mixed, "-U", str(uuid), path]


def _mkfs_ext4(path: str, length: int, uuid: UUID, quick: str) -> list[str]:
    blocks = length // BLOCK
    # assume_storage_prezeroed: the file is new, so neither journal nor inode tables need be written, now or later
    # by the kernel's lazyinit thread, which would punch holes into an allocated image.
    command = ["mkfs.ext4", "-q", "-F", "-b", str(BLOCK), "-m", "0", "-I", str(_INODE), "-i", str(_ext4_ratio(blocks))]
    command += ["-O", "metadata_csum,metadata_csum_seed"]  # so that templates.py can give copies a UUID of their own
    command += ["-E", f"{quick}=1,nodiscard,root_owner=0:0", "-U", str(uuid)]
    journal = _ext4_journal(blocks)
    command += ["-J", f"size={journal * BLOCK // MI}"] if journal else ["-O", "^has_journal"]
    return [*command, path, str(blocks)]


def _ext4_ratio(blocks: int) -> int:
    """Bytes for each inode."""
    return 8192 if blocks < 512 * MI // BLOCK else 16384


def _ext4_journal(blocks: int) -> int:
    """Blocks of the journal, 0 for none."""
    for above, journal in ((524288, 16384), (262144, 8192), (32768, 4096), (2048, 1024)):
        if blocks >= above:
            return journal
    return 0


def _sparse_groups(groups: int) -> int:
    """Block groups that hold a copy of the superblock: 0, 1 and the powers of 3, 5 and 7."""
    copies = {0, 1}
    for base in (3, 5, 7):
        power = base
        while power < groups:
            copies.add(power)
            power *= base
    return len([group for group in copies if group < groups])


def _ext4_available(blocks: int, made: int = 0) -> int:
    """Blocks that can be written on an ext4 of that many blocks (mke2fs 1.46+ with the options above), that was made
    for `made` blocks and has grown; 0: it is new."""
    made = made or blocks
    groups, first = _ceil(blocks, _GROUP), _ceil(made, _GROUP)
    inodes = _ceil(_ceil(made * BLOCK, _ext4_ratio(made)), first)
    table = _ceil(min(inodes, _GROUP) * _INODE, BLOCK)
    descriptors = _ceil(groups * 64, BLOCK)
    grown = _ceil(min(made * 1024, 0xFFFFFFFF), _GROUP)  # groups that the resize inode keeps descriptors for
    reserved = max(0, min(_ceil(grown, 64) - _ceil(first * 64, BLOCK), BLOCK // 4))
    copies = _sparse_groups(groups) * (1 + descriptors + reserved)
    overhead = copies + groups * (2 + table) + _ext4_journal(made) + 8  # 8: root, lost+found, resize inode, extents
    return blocks - overhead - min(blocks // 50, 4096)  # the kernel keeps 2 %, at most 16 MiB, for its own metadata


def _ext4_length(usable: int, made: int = 0) -> int:
    want = max(1, _ceil(usable, BLOCK))
    blocks = want
    while (missing := want - _ext4_available(blocks, made)) > 0:
        blocks += missing
    last = blocks % _GROUP
    if last and blocks > _GROUP and last < 1200:  # mke2fs drops a last group too small for its own tables
        blocks += 1200 - last
    return blocks * BLOCK


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)


_XFS_LEAST = 300 * MI
_BTRFS_LEAST = 16 * MI
_BTRFS_MIXED = 256 * MI


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
    return _ceil(length, BLOCK) * BLOCK


_LENGTHS = {"ext4": _ext4_length, "xfs": _xfs_length, "btrfs": _btrfs_length}
EXT4 = Format("ext4", MI, "mkfs.ext4")
XFS = Format("xfs", _XFS_LEAST, "mkfs.xfs")
BTRFS = Format("btrfs", _BTRFS_LEAST, "mkfs.btrfs")
FORMATS = {form.name: form for form in (EXT4, XFS, BTRFS)}
