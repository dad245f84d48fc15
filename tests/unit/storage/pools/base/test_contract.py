"""The data types of pools: names, progress, effective parameters."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError
from tonnage.storage.pools.base.contract import Erasure, PoolVolume, VolumeOrigin, check_name, is_inline, unsupported
from tonnage.storage.pools.fake.backend import FakePool


def test_names_that_may_become_part_of_a_path() -> None:
    assert check_name("pvc-1.a_b") == "pvc-1.a_b"
    for bad in ("", ".hidden", "a/b", "a\0", "a" * 129, "-x"):
        with pytest.raises(InvalidError, match="volume name"):
            check_name(bad)


def test_derived_values() -> None:
    assert is_inline({"inline": "true"})
    assert not is_inline({"inline": "yes"})
    assert (str(VolumeOrigin(snapshot="s")), str(VolumeOrigin(volume="v"))) == ("snapshot s", "volume v")
    volume = PoolVolume("a", 1, parameters={"iops": "1", "erase": "zero"}, mutable={"iops": "2"})
    assert volume.effective == {"iops": "2", "erase": "zero"}
    assert Erasure("a", "zero", total=1000, done=999).percent == 99
    assert Erasure("a", "zero", total=0).percent == 100
    assert str(unsupported(FakePool("p", 1), "wings")) == "pool 'p' (fake) does not offer wings"
