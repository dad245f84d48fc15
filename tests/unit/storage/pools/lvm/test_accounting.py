"""The account of a volume group: it says the same as a new report would, after any commands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import ExhaustedError, HostError, UnavailableError
from tonnage.host import lvm
from tonnage.host.lvm import LogicalVolume, PhysicalVolume, VolumeGroup
from tonnage.storage.pools.lvm.accounting import Account, ExtentReservation
from tonnage.storage.pools.lvm.layout import LINEAR, THIN, Layout

EXTENT = 4 * 1024**2
RAID1, STRIPED = Layout(mirrors=1), Layout(stripes=2)


class Machine:
    """What LVM would report: extents on two disks of 100, and volumes."""

    def __init__(self) -> None:
        self.used = 0
        self.reads = 0
        self.volumes: dict[str, LogicalVolume] = {}
        self.missing = 0
        self.placed: dict[str, dict[str, int]] = {}

    def read(self, name: str) -> VolumeGroup:
        self.reads += 1
        first = min(100, self.used)
        disks = (
            PhysicalVolume("/dev/a", 100, 100 - first, missing=False),
            PhysicalVolume("/dev/b", 100, 100 - (self.used - first), missing=False),
        )
        return VolumeGroup(
            name, EXTENT, 200, 200 - self.used, self.missing, True, disks, dict(self.volumes), placed=self.placed
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(lvm, "read", made.read)
    return made


def account(*, thin: str = "", ratio: float = 1.0) -> Account:
    return Account("vg0", thin=thin, ratio=ratio, on_read=lambda group: None, monotonic=lambda: 0.0)


def booking(name: str, extents: int, layout: Layout = LINEAR, *, had: int = 0, origin: str = "") -> ExtentReservation:
    return ExtentReservation(name, layout, extents, extents * EXTENT, origin=origin, had=had)


def test_what_is_made_and_removed_is_counted_without_another_report(machine: Machine) -> None:
    counted = account()
    with counted.making(booking("r", 10, RAID1)):
        assert counted.free_bytes(LINEAR) == (200 - 22) * EXTENT
    with counted.making(booking("a", 30)):
        pass
    with counted.making(booking("a", 50, had=30)):
        pass
    assert (counted.free_bytes(LINEAR), counted.volumes["a"].size) == (128 * EXTENT, 50 * EXTENT)
    assert booking("r", 15, RAID1, had=10).cost == 10
    for name, layout in (("a", LINEAR), ("r", RAID1)):
        with counted.removing(name, layout):
            pass
    assert (counted.free_bytes(LINEAR), machine.reads) == (200 * EXTENT, 1)
    counted.free_bytes(STRIPED)  # which disk has how much is not counted, so it is asked
    assert machine.reads == 2


def test_what_does_not_fit_is_rejected_before_a_command_runs(machine: Machine) -> None:
    counted = account()
    with counted.making(booking("a", 150)), pytest.raises(ExhaustedError), counted.making(booking("b", 51)):
        pytest.fail("it must not be made")
    with pytest.raises(ExhaustedError), counted.making(booking("a", 201, had=150)):
        pytest.fail("it must not grow so far")


def test_a_command_that_failed_makes_the_account_look_again(machine: Machine) -> None:
    counted = account()
    counted.fresh()
    with pytest.raises(HostError), counted.making(booking("a", 30)):
        raise HostError("killed")
    machine.used, machine.volumes["a"] = 30, LogicalVolume("a", 30 * EXTENT, (), "linear")  # made all the same
    assert (counted.free_bytes(LINEAR), machine.reads) == (170 * EXTENT, 2)
    with pytest.raises(HostError), counted.removing("a", LINEAR):
        raise HostError("killed")
    assert (counted.free_bytes(LINEAR), machine.reads) == (170 * EXTENT, 3)


def test_a_report_that_comes_while_something_is_made_counts_it_once(machine: Machine) -> None:
    counted = account()
    with counted.making(booking("a", 30)):
        counted.read()  # not yet in it
        assert counted.free_bytes(LINEAR) == 170 * EXTENT
        machine.used, machine.volumes["a"] = 30, LogicalVolume("a", 30 * EXTENT, (), "linear")
        counted.read()
        assert counted.free_bytes(LINEAR) == 170 * EXTENT
    assert counted.free_bytes(LINEAR) == 170 * EXTENT
    with counted.making(booking("a", 40, had=30)):
        counted.read()
        assert counted.free_bytes(LINEAR) == 160 * EXTENT


def test_thin_volumes_take_promises_and_no_extents(machine: Machine) -> None:
    machine.used, machine.volumes["pool"] = 50, LogicalVolume("pool", 50 * EXTENT, (), "thin,pool")
    counted = account(thin="pool", ratio=2.0)
    assert counted.free_bytes(THIN) == 100 * EXTENT
    with counted.making(booking("a", 60, THIN)):
        pass
    with counted.making(booking("s", 40, THIN, origin="a")):
        pass
    assert (counted.free_bytes(THIN), counted.free_bytes(LINEAR)) == (0, 150 * EXTENT)
    assert counted.thick_snapshots("a") == []
    with counted.removing("a", THIN):
        pass
    assert counted.free_bytes(THIN) == 60 * EXTENT
    del machine.volumes["pool"]
    counted.read()
    with pytest.raises(UnavailableError, match="no thin pool pool any more"):
        counted.free_bytes(THIN)


def test_layouts_that_need_several_disks_may_have_what_others_leave_there(machine: Machine) -> None:
    machine.used, machine.volumes["a"] = 150, LogicalVolume("a", 150 * EXTENT, (), "linear")
    machine.placed = {"a": {"/dev/a": 100, "/dev/b": 50}}
    counted = account()
    gone = {"a": LINEAR, "b": LINEAR}
    assert [counted.free_bytes(layout) // EXTENT for layout in (LINEAR, STRIPED, RAID1)] == [50, 0, 0]
    assert [counted.free_bytes(layout, without=gone) // EXTENT for layout in (LINEAR, STRIPED, RAID1)] == [200, 200, 99]
    assert machine.reads == 1


def test_thick_snapshots_follow_their_origin_to_another_name(machine: Machine) -> None:
    counted = account()
    for made in (booking("a", 10), booking("s", 3, origin="a"), booking("t", 3, origin="a")):
        with counted.making(made):
            pass
    counted.renamed("a", "o+1")
    assert [found.name for found in counted.thick_snapshots("o+1")] == ["s", "t"]
    counted.split("s")
    with counted.removing("t", LINEAR):
        pass
    assert counted.thick_snapshots("o+1") == counted.thick_snapshots("a") == []


def test_a_group_that_misses_a_disk_has_no_room(machine: Machine) -> None:
    machine.missing = 1
    assert account().free_bytes(LINEAR) == 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["make", "grow", "remove"]), st.integers(0, 3), st.integers(1, 40), st.booleans()),
    max_size=25,
)


@given(STEPS)
def test_any_commands_leave_it_as_a_report_would_say(steps: list[tuple[str, int, int, bool]]) -> None:
    machine = Machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lvm, "read", machine.read)
        counted, layouts = account(), dict[str, Layout]()
        for what, number, extents, mirrored in steps:
            name = f"v{number}"
            had = machine.volumes[name].size // EXTENT if name in machine.volumes else 0
            layout = layouts.get(name, RAID1 if mirrored else LINEAR)
            if what == "remove" and had:
                with counted.removing(name, layouts.pop(name)):
                    machine.used -= layout.cost(had)
                    del machine.volumes[name]
            elif (what == "make" and not had) or (what == "grow" and had):
                wanted = booking(name, had + extents, layout, had=had)
                if wanted.cost > 200 - machine.used:
                    continue
                try:
                    with counted.making(wanted):
                        machine.used += wanted.cost
                        made = LogicalVolume(name, wanted.size, (), "")
                        machine.volumes[name] = replace(machine.volumes.get(name, made), size=wanted.size)
                        layouts[name] = layout
                except ExhaustedError:
                    assert layout is not LINEAR, "it would have fitted"
        assert counted.free_bytes(LINEAR) == (200 - machine.used) * EXTENT
        assert {name: found.size for name, found in counted.volumes.items()} == {
            name: found.size for name, found in machine.volumes.items()
        }
