from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError
from tonnage.host.ndctl import MODES
from tonnage.storage.pools.fs.formats import FORMATS
from tonnage.storage.pools.pmem.overhead import largest, mode_of, raw_size, usable

MI, GI, TI = 1024**2, 1024**3, 1024**4


@pytest.mark.parametrize(
    ("mode", "raw", "has"),
    [  # what Linux 6.1 and ndctl 76 made of it
        ("fsdax", 16 * MI, 14680064),
        ("fsdax", 48 * MI, 48234496),
        ("fsdax", 128 * MI, 130023424),
        ("fsdax", 4608 * MI, 4754243584),
        ("devdax", 64 * MI, 65011712),
        ("devdax", 4608 * MI, 4754243584),
    ],
)
def test_what_the_kernel_leaves(mode: str, raw: int, has: int) -> None:
    assert usable(mode, raw) == has


@pytest.mark.parametrize(("raw", "has"), [(32 * MI, 32440320), (4608 * MI, 4826042368)])
def test_sectors_are_bounded_from_below(raw: int, has: int) -> None:
    assert has - raw // 100 <= usable("sector", raw) <= has


def test_a_sector_namespace_has_at_least_32_mi() -> None:
    assert usable("sector", 16 * MI) == 0
    assert raw_size("sector", 4096, 16 * MI) == 32 * MI
    assert raw_size("fsdax", 4096, 16 * MI) == 16 * MI


@given(st.sampled_from(MODES), st.integers(1, 16 * TI), st.sampled_from([2 * MI, 16 * MI, 96 * MI, GI]))
def test_a_namespace_is_large_enough_and_no_larger(mode: str, length: int, align: int) -> None:
    raw = raw_size(mode, length, align)
    assert raw % align == 0
    assert usable(mode, raw) >= length
    assert raw - align < (32 * MI if mode == "sector" else 1) or usable(mode, raw - align) < length


@given(st.sampled_from(MODES), st.integers(0, 4 * TI), st.sampled_from([None, "ext4", "xfs"]))
def test_the_largest_volume_fits(mode: str, free: int, fstype: str | None) -> None:
    form, align = FORMATS[fstype] if fstype else None, 16 * MI
    size = largest(mode, form, free, align)
    if size:
        assert raw_size(mode, form.length(size) if form else size, align) <= free


def test_modes() -> None:
    assert mode_of({}, "sector") == "sector"
    assert mode_of({"nsmode": "devdax"}, "sector") == "devdax"
    with pytest.raises(InvalidError, match="nsmode='memory'"):
        mode_of({"nsmode": "memory"}, "fsdax")
