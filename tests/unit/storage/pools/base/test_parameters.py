"""Values of shared class parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage.storage.pools.base import parameters
from tonnage.storage.pools.base.parameters import IoLimits


def test_what_is_not_given_is_off() -> None:
    assert parameters.erase_of({}) == "none"
    assert not parameters.io_limits_of({})
    assert parameters.reserve_of({}) == 0
    assert parameters.source_of({}) is None


def test_values_are_read() -> None:
    assert parameters.io_limits_of({"iops": "500", "bandwidth": "50Mi"}) == IoLimits(500, 50 * 1024**2)
    assert parameters.reserve_of({"reserve": "1Gi"}) == 1024**3
    assert parameters.source_of({"source": "dir:///data//models/"}) == Path("/data/models")
    assert parameters.erase_of({"erase": "shred"}) == "shred"


@pytest.mark.parametrize(
    "bad",
    [{"erase": "burn"}, {"iops": "-1"}, {"iops": "many"}, {"bandwidth": "0"}, {"reserve": "1Xi"}, {"source": "/data"}]
    + [{"source": f"dir://{path}"} for path in ("data", "", "/a/../b", "/a\0b")],
)
def test_bad_values_are_rejected_by_name(bad: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match=f"parameter {next(iter(bad))}"):
        _read_all(bad)


def _read_all(given: dict[str, str]) -> None:
    parameters.erase_of(given)
    parameters.io_limits_of(given)
    parameters.reserve_of(given)
    parameters.source_of(given)


def test_an_erase_method_that_a_kind_lacks_is_rejected() -> None:
    with pytest.raises(InvalidError, match="want none or discard"):
        parameters.erase_of({"erase": "zero"}, ("none", "discard"))
