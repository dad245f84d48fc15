"""Layouts of logical volumes: parameters, cost and room."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError, TonnageError, UnsupportedError
from tonnage.host.lvm import PhysicalVolume
from tonnage.storage.pools.lvm.layout import Layout, cow_extents, cow_size, read

MI = 1024**2


@pytest.mark.parametrize(
    ("parameters", "thin_pool", "layout"),
    [
        ({}, "", Layout()),
        ({}, "pool", Layout(thin=True)),
        ({"thin": "false"}, "pool", Layout()),
        ({"type": "linear"}, "pool", Layout()),
        ({"type": "striped"}, "", Layout(stripes=2)),
        ({"type": "striped", "stripes": "4", "erase": "discard"}, "", Layout(stripes=4)),
        ({"type": "raid1"}, "pool", Layout(mirrors=1)),
        ({"type": "raid1", "mirrors": "2"}, "", Layout(mirrors=2)),
    ],
)
def test_read(parameters: dict[str, str], thin_pool: str, layout: Layout) -> None:
    assert read(parameters, thin_pool=thin_pool, pool="p") == layout


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"cowSize": "1Gi", "thin": "true"}, InvalidError, "cowSize: it is for snapshots of thick"),
        ({"cowSize": "10", "thin": "false"}, InvalidError, "cowSize='10': want 1Mi or more"),
        ({"cowSize": "much", "thin": "false"}, InvalidError, "cowSize"),
        ({"thin": "true", "erase": "shred"}, InvalidError, "erase='shred'"),
        ({"thin": "maybe"}, InvalidError, "thin='maybe'"),
        ({"thin": "true", "type": "raid1"}, InvalidError, "type=raid1"),
        ({"thin": "true", "erase": "zero"}, InvalidError, "erase='zero'"),
        ({"type": "mirror"}, InvalidError, "type='mirror'"),
        ({"stripes": "2", "thin": "false"}, InvalidError, "stripes: it goes with type=striped"),
        ({"type": "striped", "mirrors": "1"}, InvalidError, "mirrors: it goes with type=raid1"),
        ({"type": "striped", "stripes": "1"}, InvalidError, "stripes='1': want 2 to 32"),
        ({"type": "striped", "stripes": "99999999"}, InvalidError, "want 2 to 32"),
        ({"type": "raid1", "mirrors": "-1"}, InvalidError, "mirrors"),
        ({"type": "raid1", "mirrors": "²"}, InvalidError, "mirrors"),
    ],
)
def test_rejected_by_name(parameters: dict[str, str], error: type[TonnageError], words: str) -> None:
    with pytest.raises(error, match=words):
        read(parameters, thin_pool="pool", pool="p")


def test_thin_needs_a_thin_pool() -> None:
    with pytest.raises(UnsupportedError, match="no thin pool"):
        read({"thin": "true"}, thin_pool="", pool="p")


def disks(*free: int) -> tuple[PhysicalVolume, ...]:
    return tuple(PhysicalVolume(f"/dev/{n}", 100, left, missing=False) for n, left in enumerate(free))


@pytest.mark.parametrize(
    ("layout", "room"),
    [
        (Layout(), 60),
        (Layout(stripes=2), 40),
        (Layout(stripes=3), 30),
        (Layout(stripes=4), 0),
        (Layout(mirrors=1), 19),
        (Layout(mirrors=2), 9),
        (Layout(mirrors=3), 0),
    ],
)
def test_room_on_disks_of_different_sizes(layout: Layout, room: int) -> None:
    assert layout.usable(disks(30, 10, 20), 60) == room
    assert layout.cost(room) <= 60


def test_a_thick_snapshot_keeps_what_was_asked_or_all_that_can_change() -> None:
    assert cow_size({}) == 0
    assert cow_size({"cowSize": "1Gi"}) == 1024 * MI
    assert cow_extents(40 * MI, 0, 4 * MI) == 11  # what lvcreate says is the most for 40Mi
    assert cow_extents(40 * MI, 8 * MI, 4 * MI) == 2
    assert cow_extents(40 * MI, 5 * MI, 4 * MI) == 2
    assert cow_extents(40 * MI, 4096 * MI, 4 * MI) == 11


def test_extents_and_cost() -> None:
    assert Layout().extents(5 * MI, 4 * MI) == 2
    assert Layout(stripes=3).extents(5 * MI, 4 * MI) == 3
    assert Layout(mirrors=1).cost(2) == 6
    assert Layout(thin=True).cost(2) == 0
