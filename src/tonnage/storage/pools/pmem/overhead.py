"""The overhead of a volume in a namespace of persistent memory, for each mode. No I/O.

fsdax and devdax store a description of every page (64 bytes, `--map=dev`) in front of the data, which begins at a
multiple of 2 MiB (drivers/nvdimm/pfn_devs.c). sector stores a map and a log to write sectors atomically
(drivers/nvdimm/btt.h). Its overhead here is an upper bound, those of the others are exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from tonnage.base.errors import InvalidError
from tonnage.host.ndctl import MODES, SECTOR
from tonnage.storage.pools.fs.formats import GI, MI, Format

NSMODE = "nsmode"
_PAGE, _DESCRIPTION, _HEAD, _HUGE_PAGE = 4096, 64, 8192, 2 * MI
_ARENA = 512 * GI
_ARENA_HEAD = MI + 128 * 1024  # 256 spare blocks, their log, two info blocks, what rounding takes
_LEAST = {"fsdax": 0, "devdax": 0, "sector": 32 * MI}  # raw: an arena has 16 MiB, without its info blocks


def mode_of(parameters: Mapping[str, str], default: str) -> str:
    """The mode of a class's volumes: `fsdax`, `devdax` or `sector`. Raises: InvalidError."""
    mode = parameters.get(NSMODE) or default
    if mode not in MODES:
        raise InvalidError(f"parameter {NSMODE}={mode[:40]!r}: want one of {', '.join(MODES)}")
    return mode


def usable(mode: str, raw: int) -> int:
    """Minimum bytes of the device of a namespace."""
    if mode == "sector":
        arenas = -(-raw // _ARENA)
        left = raw - arenas * _ARENA_HEAD - raw // 1024
    else:
        pages = (raw - _HEAD) // _PAGE
        left = raw - _round(_HEAD + pages * _DESCRIPTION, _HUGE_PAGE)
    return max(0, left // SECTOR * SECTOR) if raw >= _LEAST[mode] else 0


def raw_size(mode: str, length: int, align: int) -> int:
    """Bytes of the smallest namespace, a multiple of align, whose device has at least `length`."""
    raw = _round(max(length, _LEAST[mode], 1), align)
    while usable(mode, raw) < length:
        raw += max(align, (length - usable(mode, raw)) // align * align)
    return raw


def largest(mode: str, form: Format | None, free: int, align: int) -> int:
    """Usable bytes of the largest volume in that many free bytes. form: its file system format, None for raw block."""
    usable_bytes = usable(mode, free // align * align)
    return form.usable(usable_bytes) if form else usable_bytes


def _round(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit
