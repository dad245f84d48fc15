"""The class parameter `mkfsOptions`: options of mkfs that a class may choose.

Only the options in the tables here are allowed. The tables have none that chooses size, device, UUID, label or reserved
blocks, or that the pool sets itself. Sources: mke2fs(8), mkfs.xfs(8), mkfs.btrfs(8).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from tonnage.base.errors import InvalidError
from tonnage.storage.pools.base.parameters import NO_MKFS_OPTIONS, MkfsOptions

_LONGEST = 512  # characters
_K = 1024
_NOTHING = "(nothing)"
_Check = Callable[[str], bool]


def _one_of(*words: str) -> _Check:
    return frozenset(words).__contains__


def _is_number(least: int, most: int) -> _Check:
    return lambda text: text.isascii() and text.isdigit() and len(text) < 16 and least <= int(text) <= most


def _power(least: int, most: int) -> _Check:
    return lambda text: _is_number(least, most)(_plain(text)) and int(_plain(text)).bit_count() == 1


def _plain(text: str) -> str:
    """A number of bytes with the suffix k written out."""
    return str(int(text[:-1]) * _K) if re.fullmatch(r"[0-9]{1,6}[kK]", text) else text


_FLAG = _one_of("0", "1")


@dataclass(frozen=True)
class _Option:
    """An option with one value, or with a list of `keys` (with values) or `words`. hint: its syntax."""

    hint: str
    value: _Check | None = None
    keys: Mapping[str, _Check] = field(default_factory=dict)
    words: frozenset[str] = frozenset()

    def fault(self, text: str) -> str:
        """The part of a value that is not allowed, "" for none."""
        if self.value is not None:
            return "" if self.value(text) else text or _NOTHING
        for part in text.split(","):
            key, equals, value = part.partition("=")
            if part not in self.words and not (equals and key in self.keys and self.keys[key](value)):
                return part or _NOTHING
        return ""


def _both(*features: str) -> frozenset[str]:
    return frozenset(features) | {f"^{feature}" for feature in features}


_EXT4_FEATURES = frozenset({"^has_journal", "large_dir", "ea_inode", "inline_data", "verity", "encrypt", "casefold"})
_EXTENDED = dict.fromkeys(("lazy_itable_init", "lazy_journal_init"), _FLAG)
_EXTENDED |= dict.fromkeys(("stride", "stripe_width"), _is_number(1, 2**20))
_XFS_META = dict.fromkeys(("reflink", "bigtime", "inobtcount", "finobt"), _FLAG) | {"crc": _one_of("1")}
_XFS_INODE = {"size": _power(512, 2 * _K), "maxpct": _is_number(0, 100), "sparse": _FLAG}
_BTRFS_FEATURES = _both("no-holes", "free-space-tree", "block-group-tree", "extref", "skinny-metadata")
_TABLES: Mapping[str, Mapping[str, _Option]] = {
    "ext4": {
        "-i": _Option("bytes for each inode, 4096 to 67108864", _is_number(4 * _K, 64 * _K * _K)),
        "-I": _Option("bytes of an inode: 256, 512 or 1024", _one_of("256", "512", "1024")),
        "-N": _Option("a number of inodes, from 64 on", _is_number(64, 2**32 - 1)),
        "-O": _Option(", ".join(sorted(_EXT4_FEATURES)), words=_EXT4_FEATURES),
        "-E": _Option("lazy_itable_init, lazy_journal_init (0 or 1), stride, stripe_width (blocks)", keys=_EXTENDED),
    },
    "xfs": {
        "-m": _Option("reflink, bigtime, inobtcount, finobt (0 or 1), crc=1", keys=_XFS_META),
        "-i": _Option("size (512 to 2048), maxpct, sparse (0 or 1)", keys=_XFS_INODE),
        "-n": _Option("size=4096 to size=65536", keys={"size": _power(4 * _K, 64 * _K)}),
    },
    "btrfs": {
        "-n": _Option("4096 to 65536 bytes (4k to 64k)", _power(4 * _K, 64 * _K)),
        "-O": _Option(", ".join(sorted(_BTRFS_FEATURES)), words=_BTRFS_FEATURES),
        "--checksum": _Option("crc32c, xxhash, sha256 or blake2", _one_of("crc32c", "xxhash", "sha256", "blake2")),
    },
}
_LONG = {"btrfs": {"--nodesize": "-n", "--features": "-O", "--csum": "--checksum"}}


@cache
def read_mkfs_options(fstype: str, text: str) -> MkfsOptions:
    """Parse the mkfs options of a text for a file system. Raises: InvalidError, naming what is not allowed."""
    if not text:
        return NO_MKFS_OPTIONS
    table = _TABLES[fstype]
    if len(text) > _LONGEST or not text.isprintable():
        raise InvalidError(f"parameter mkfsOptions: want at most {_LONGEST} printable characters")
    words: dict[str, str] = {}
    for name, value in _pairs(fstype, text):
        if fault := table[name].fault(value):
            raise InvalidError(f"parameter mkfsOptions: {name} {fault[:40]}: {name} takes {table[name].hint}")
        if name in words:
            raise InvalidError(f"parameter mkfsOptions: {name} is there twice")
        words[name] = value
    if "-i" in words and "-N" in words:
        raise InvalidError("parameter mkfsOptions: -i and -N say the same thing, want one of them")
    numbers = [int(words.get(name, "0")) if fstype == "ext4" else 0 for name in ("-i", "-I", "-N")]
    return MkfsOptions(tuple(words.items()), *numbers)


def _pairs(fstype: str, text: str) -> list[tuple[str, str]]:
    """Options and their values: `-i 4096`, `-i4096`, `--nodesize 4k` and `--nodesize=4k`."""
    try:
        rest = shlex.split(text)
    except ValueError as reason:
        raise InvalidError(f"parameter mkfsOptions: {reason}: {text[:60]!r}") from None
    pairs = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            raise InvalidError(
                f"parameter mkfsOptions: {word[:40]!r} is no option: the device and its size are the pool's"
            )
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        name = _LONG.get(fstype, {}).get(name, name)
        if name not in (table := _TABLES[fstype]):
            raise InvalidError(
                f"parameter mkfsOptions: {name[:40]!r} is not for {fstype} here, want {', '.join(table)}"
            )
        if not equals:
            if not rest:
                raise InvalidError(f"parameter mkfsOptions: {name} lacks its value")
            value = rest.pop(0)
        pairs.append((name, value))
    return pairs
