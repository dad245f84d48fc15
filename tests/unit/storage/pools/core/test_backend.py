"""What a back end need not implement: defaults, and rejections by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError, NotFoundError, UnavailableError, UnsupportedError
from tonnage.storage.pools.base.contract import Capacity, SnapshotRequest, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.core.backend import Backend, Mounts
from tonnage.storage.pools.fake.backend import FEATURES, FakeBackend


class Closed(FakeBackend):
    """Not open."""

    is_open = False


def _backend(kind: type[FakeBackend] = FakeBackend) -> FakeBackend:
    made = kind(1000, largest=0, features=FEATURES, directories=False, clock=RealClock(), erase_rate=0)
    made.name = "p"
    return made


def test_defaults_of_all_kinds(tmp_path: Path) -> None:
    backend = _backend()
    record = backend.create(VolumeRequest("a", 10), backend.want(VolumeRequest("a", 10)))
    assert backend.origin(VolumeOrigin(volume="a")) == record
    with pytest.raises(NotFoundError, match="pool 'p' has no snapshot 's'"):
        backend.origin(VolumeOrigin(snapshot="s"))
    assert Backend.overall(backend) == Capacity(1000, 990, 990, 1, 10)
    assert backend.modify("a", {"erase": "zero"}).mutable == {"erase": "zero"}
    assert (backend.limit(), backend.problems([]), backend.reread(), backend.home(record.volume())) == (
        0,
        [],
        False,
        None,
    )
    assert Backend.snapshot_capacity(backend, record)[0] == 10
    with pytest.raises(NotFoundError):
        Mounts.grow(backend, record, tmp_path)
    with pytest.raises(InvalidError, match="erase"):
        Backend.check(backend, {"erase": "maybe"}, "ext4", block=False)
    for call in (
        lambda: Backend.expand(backend, "a", 20),
        lambda: Backend.snapshot(backend, SnapshotRequest("s", "a")),
        lambda: Backend.snapshot_together(backend, [SnapshotRequest("s", "a")], lambda: True),
        lambda: Backend.freeze(backend, record),
        lambda: Backend.delete_snapshot(backend, "s"),
    ):
        with pytest.raises(UnsupportedError, match=r"pool 'p' \(fake\) does not offer"):
            call()
    with pytest.raises(UnsupportedError, match="does not offer block devices"):
        backend.device(record)


def test_a_closed_one_has_no_records() -> None:
    with pytest.raises(UnavailableError, match="is not open"):
        _backend(Closed).record("a")
