"""The layout of an ext4, as mke2fs 1.46 and later makes it: its overhead and its usable blocks.

It covers the options that the pool passes to mkfs and those that a class may add.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from tonnage.pools.base.mkfs_options import NONE, MkfsOptions

BLOCK = 4096
_MI = 1024**2
_GROUP = 32768  # blocks in a block group: one block of bitmap
_INODE = 256
_FEATURES = ("metadata_csum", "metadata_csum_seed")  # so that templates.py can give copies a UUID of their own


def mkfs(path: str, length: int, uuid: UUID, *, prezeroed: bool = True, options: MkfsOptions = NONE) -> list[str]:
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
        *(["-J", f"size={journal * BLOCK // _MI}"] if journal else []), path, str(blocks),
    ]  # fmt: skip


def _ratio(blocks: int, options: MkfsOptions) -> int:
    """Bytes per inode."""
    return options.ratio or (8192 if blocks < 512 * _MI // BLOCK else 16384)


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
def length(usable: int, *, made: int = 0, options: MkfsOptions = NONE) -> int:
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
    if options == NONE:
        return 1200
    return 3 + _table(made, options) + ceil(ceil(blocks, _GROUP) * 64, BLOCK) + _reserved(made) + 50


def ceil(amount: int, unit: int) -> int:
    """The quotient, rounded up."""
    return -(-amount // unit)
