"""File system formats of images: the image's length for a usable size, and the mkfs commands.

If a class asks for 4Gi, the pod must be able to write 4Gi, and the file system needs an overhead on top. The overhead
of ext4 is computed from its layout, block by block. For xfs and btrfs it is an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from uuid import UUID

from msgspec import structs

from tonnage.storage.pools.base.mkfs_options import read_mkfs_options
from tonnage.storage.pools.base.parameters import MKFS_OPTIONS, NO_MKFS_OPTIONS, MkfsOptions
from tonnage.storage.pools.base.record import VolumeRecord

BLOCK = 4096
MI = 1024**2
GI = 1024**3
_GROUP = 32768  # blocks in a block group: one block of bitmap
_INODE = 256
_FEATURES = (
    "none",  # not the machine's defaults: orphan_file, in some since e2fsprogs 1.47, takes blocks of the requested size
    *("64bit", "dir_index", "dir_nlink", "ext_attr", "extent", "extra_isize", "filetype", "flex_bg", "huge_file"),
    *("large_file", "resize_inode", "sparse_super", "has_journal"),
    *("metadata_csum", "metadata_csum_seed"),  # so that copies of a template can have a UUID of their own
)


def ext4_mkfs(
    path: str, length: int, uuid: UUID, *, prezeroed: bool = True, options: MkfsOptions = NO_MKFS_OPTIONS
) -> list[str]:
    """The mkfs command for a pristine file of that length.

    prezeroed: pass assume_storage_prezeroed, which mke2fs 1.47 understands.
    """
    blocks = length // BLOCK
    # assume_storage_prezeroed: the file is new, so neither journal nor inode tables need be written, now or later
    # by the kernel's lazyinit thread, which would punch holes into an allocated image.
    quick = "assume_storage_prezeroed" if prezeroed else "lazy_itable_init"
    extended = [f"{quick}=1", "nodiscard", "root_owner=0:0", *options.values("-E")]
    journal = _journal(blocks, options)
    features = [*_FEATURES, *options.values("-O")]
    if not journal and options.has_journal:
        features.append("^has_journal")
    number = ["-N", str(options.inodes)] if options.inodes else ["-i", str(_ratio(blocks, options))]
    return [
        "mkfs.ext4", "-q", "-F", "-b", str(BLOCK), "-m", "0", "-I", str(options.inode_size or _INODE), *number,
        "-O", ",".join(features), "-E", ",".join(extended), "-U", str(uuid),
        *(["-J", f"size={journal * BLOCK // MI}"] if journal else []), path, str(blocks),
    ]  # fmt: skip


def _ratio(blocks: int, options: MkfsOptions) -> int:
    """Bytes per inode."""
    return options.ratio or (8192 if blocks < 512 * MI // BLOCK else 16384)


def _journal(blocks: int, options: MkfsOptions) -> int:
    """Blocks of the journal, 0 for none."""
    for above, journal in ((524288, 16384), (262144, 8192), (32768, 4096), (2048, 1024)):
        if blocks >= above and options.has_journal:
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


def _table(made: int, options: MkfsOptions) -> int:
    """Blocks of the inode table of each group, of a file system made for that many blocks."""
    groups = ceil(made, _GROUP)
    inodes = ceil(options.inodes or ceil(made * BLOCK, _ratio(made, options)), groups)
    return ceil(min(inodes, _GROUP) * (options.inode_size or _INODE), BLOCK)


def _reserved(made: int) -> int:
    """Blocks that each copy of the superblock reserves for descriptors of more groups."""
    grown = ceil(min(made * 1024, 0xFFFFFFFF), _GROUP)
    return max(0, min(ceil(grown, 64) - ceil(ceil(made, _GROUP) * 64, BLOCK), BLOCK // 4))


def _available(blocks: int, made: int, options: MkfsOptions) -> int:
    """Usable blocks of a file system of that many blocks, made for `made` blocks and grown."""
    groups = ceil(blocks, _GROUP)
    copies = _sparse_groups(groups) * (1 + ceil(groups * 64, BLOCK) + _reserved(made))
    # 8: root, lost+found, resize inode, extents
    overhead = copies + groups * (2 + _table(made, options)) + _journal(made, options) + 8
    return blocks - overhead - min(blocks // 50, 4096)  # the kernel keeps 2 %, at most 16 MiB, for its own metadata


@lru_cache(maxsize=256)  # asked again with each GetCapacity
def ext4_length(usable: int, *, made: int = 0, options: MkfsOptions = NO_MKFS_OPTIONS) -> int:
    """Bytes of an image with that many usable ones. made: bytes that it was made for, 0 for a new one."""
    want = max(1, ceil(usable, BLOCK))
    blocks = want
    while (missing := want - _available(blocks, made // BLOCK or blocks, options)) > 0:
        blocks += missing
    last = blocks % _GROUP
    least = _least_group(blocks, made // BLOCK or blocks, options)
    if last and blocks > _GROUP and last < least:
        blocks += least - last
    return blocks * BLOCK


def _least_group(blocks: int, made: int, options: MkfsOptions) -> int:
    """Minimum blocks of the last group: mke2fs drops it unless it holds its own tables and 50 more blocks."""
    if options == NO_MKFS_OPTIONS:
        return 1200
    return 3 + _table(made, options) + ceil(ceil(blocks, _GROUP) * 64, BLOCK) + _reserved(made) + 50


def ceil(amount: int, unit: int) -> int:
    """The quotient, rounded up."""
    return -(-amount // unit)


@dataclass(frozen=True)
class Format:
    """A file system format. least: minimum usable size in bytes. options: mkfsOptions of the class."""

    name: str
    least: int
    command: str
    options: MkfsOptions = NO_MKFS_OPTIONS

    def made_with(self, text: str) -> Format:
        """The same format with a class's mkfsOptions. Raises: InvalidError for options that are not allowed."""
        options = read_mkfs_options(self.name, text)
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
            return ext4_length(usable, options=self.options)
        return _xfs_length(usable) if self.name == "xfs" else _btrfs_length(usable)

    def grown(self, usable: int, made: int) -> int:
        """Length for a file system that was made for an image of `made` bytes and grows: mkfs's choices stay."""
        if self.name == "btrfs" and self.length(usable) > made:
            return max(_BTRFS_GROWN, self.length(usable))
        if self.name != "ext4":
            return max(made, self.length(usable))
        return max(made, ext4_length(usable, made=made, options=self.options))

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
            return ext4_mkfs(path, length, uuid, prezeroed=prezeroed, options=self.options)
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
_BTRFS_GROWN = 256 * MI  # the kernel rejects to make one larger that stays below this


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
    return ceil(length, BLOCK) * BLOCK


EXT4 = Format("ext4", MI, "mkfs.ext4")
XFS = Format("xfs", _XFS_LEAST, "mkfs.xfs")
BTRFS = Format("btrfs", _BTRFS_LEAST, "mkfs.btrfs")
FORMATS = {form.name: form for form in (EXT4, XFS, BTRFS)}


def form_of(fstype: str, options: str = "") -> Format:
    """The format that a class asks for. options: its mkfsOptions. Raises: InvalidError."""
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


def form_for(fstype: str, parameters: Mapping[str, str]) -> Format | None:
    """The format for volumes of a class, None for raw block. Raises: InvalidError."""
    return form_of(fstype, parameters.get(MKFS_OPTIONS, "")) if fstype else None
