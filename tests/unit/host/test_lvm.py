"""LVM's words read and written; its commands themselves are tried in tests/vm."""

from __future__ import annotations

import fcntl
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import (
    ExhaustedError,
    HostError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from tonnage.host import lvm
from tonnage.host.run import CommandError


@given(st.text(max_size=80), st.text(max_size=80))
def test_tags_keep_any_text_in_lvm_s_alphabet(key: str, value: str) -> None:
    text = lvm.tag("tonnage", key, value=value)
    assert re.fullmatch(r"[A-Za-z0-9_+.\-/=!:&#]+", text)
    assert lvm.untag(text) == (f"tonnage.{key}", value)


def test_a_tag_is_readable_where_it_can_be() -> None:
    assert lvm.tag("tonnage", "o", "claim", value="default/x y") == "tonnage.o.claim=default/x+20y"


def test_a_tag_that_is_too_long_is_rejected() -> None:
    with pytest.raises(InvalidError, match="too long"):
        lvm.tag("tonnage", "o", "claim", value="x" * 1020)


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a b", "a/b", "a\0", "a" * 101, "ä"])
def test_no_volume_groups(name: str) -> None:
    with pytest.raises(InvalidError, match="volume group"):
        lvm.check_group(name)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("pvc-0b1c3cf0-3a5f-4a2b-8a7e-1d2e3f4a5b6c", True),
        ("snapshot1", False),
        ("pvmove0", False),
        ("a_tdata", False),
        ("a_rimage_0", False),
        ("..", False),
        ("a" * 123, True),
        ("a" * 124, False),
        ("-".join("a" * 42), False),  # every hyphen is two in the device-mapper's name
    ],
)
def test_names_of_volumes(name: str, fits: bool) -> None:
    assert lvm.fits("vg0", name) is fits


def test_names_of_the_device_mapper() -> None:
    assert lvm.mapper_name("my-vg", "pvc-1") == "my--vg-pvc--1"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ('Volume group "vg0" has insufficient free space (869 extents): 50000 required.', ExhaustedError),
        ("VG vg0 642 metadata on /dev/a (521860 bytes) exceeds maximum metadata size (521472 bytes)", ExhaustedError),
        ('Volume group "vgx" not found\n  Cannot process volume group vgx', UnavailableError),
        ('Failed to find logical volume "vg0/nope"', NotFoundError),
        ("Logical volume vg0/t0 contains a filesystem in use.", PreconditionError),
        ("Logical volume vg0/s0 in use.", PreconditionError),
        ("Cannot change VG vg0 while PVs are missing.\n  See vgreduce --removemissing", UnavailableError),
        ("Maximum number of logical volumes (7) reached in volume group vg0", ExhaustedError),
        ("Cannot create new thin volume, free space in thin pool vg0/thin reached threshold.", ExhaustedError),
        ("Something else", HostError),
    ],
)
def test_what_lvm_says_and_what_is_meant(said: str, error: type[Exception]) -> None:
    failure = CommandError(["lvm"], "exit code 5", code=5, stderr=f"  WARNING: not found in use.\n  {said}")
    meant = lvm.meaning(["lvcreate", "vg0"], failure)
    assert type(meant) is error
    assert said.splitlines()[0] in str(meant)
    assert "WARNING" not in str(meant)


def test_a_group_that_is_not_there_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(command: list[str], **_: object) -> str:
        said = '  Volume group "nogroup" not found\n  Cannot process volume group nogroup'
        raise CommandError(command, "exit code 5", code=5, stderr=said)

    monkeypatch.setattr(lvm, "run", absent)
    with pytest.raises(UnavailableError, match=r"no volume group nogroup.*tonnage pools init lvm:nogroup DEVICE"):
        lvm.read("nogroup")


REPORT = """{"report": [{
"vg": [{"vg_name":"vg0", "vg_extent_size":"4194304", "vg_extent_count":"1022", "vg_free_count":"500", "max_lv":"9",
        "vg_missing_pv_count":"1", "vg_permissions":"writeable", "vg_exported":"0", "lv_count":"3", "pv_count":"2"}],
"pv": [
  {"pv_name":"/dev/a", "pv_pe_count":"511", "pv_pe_alloc_count":"143", "pv_allocatable":"1", "pv_missing":"0"},
  {"pv_name":"[unknown]", "pv_pe_count":"511", "pv_pe_alloc_count":"10", "pv_allocatable":"1", "pv_missing":"1"}],
"lv": [
  {"lv_name":"pool", "lv_size":"536870912", "lv_tags":"", "lv_layout":"thin,pool", "pool_lv":"", "origin":"",
   "data_percent":"1.50", "metadata_percent":"10.94", "lv_when_full":"error", "lv_active":"active",
   "lv_health_status":""},
  {"lv_name":"[pool_tdata]", "lv_size":"536870912", "lv_tags":"", "lv_layout":"linear", "pool_lv":"", "origin":"",
   "data_percent":"", "metadata_percent":"", "lv_when_full":"", "lv_active":"active", "lv_health_status":""},
  {"lv_name":"v", "lv_size":"4194304", "lv_tags":"a,b=1", "lv_layout":"thin,sparse", "pool_lv":"pool",
   "data_percent":"", "metadata_percent":"", "lv_when_full":"", "lv_active":"", "origin":"w",
   "lv_health_status":"partial"},
  {"lv_name":"s", "lv_size":"4194304", "lv_tags":"", "lv_layout":"linear", "pool_lv":"", "origin":"w",
   "data_percent":"", "metadata_percent":"", "lv_when_full":"", "lv_active":"", "lv_health_status":""}],
"seg": [{"lv_name":"pool", "zero":"1"}, {"lv_name":"v", "zero":"-1"}, {"lv_name":"s", "zero":"-1"}],
"pvseg": [{"pv_name":"/dev/a", "lv_name":"[v_rmeta_0]", "pvseg_size":"1"},
  {"pv_name":"/dev/a", "lv_name":"[v_rimage_0]", "pvseg_size":"8"},
  {"pv_name":"/dev/a", "lv_name":"", "pvseg_size":"40"},
  {"pv_name":"/dev/a", "lv_name":"[v_rimage_0]", "pvseg_size":"2"},
  {"pv_name":"/dev/b", "lv_name":"[v_rimage_1]", "pvseg_size":"10"},
  {"pv_name":"/dev/b", "lv_name":"s", "pvseg_size":"1"}]
}]}"""


def test_a_report() -> None:
    group = lvm.parse(REPORT)
    assert (group.extent, group.extents, group.free, group.missing, group.writable) == (4194304, 1022, 500, 1, True)
    assert (group.most, group.count) == (9, 3)
    assert [disk.free for disk in group.disks] == [368, 0]
    pool, volume = group.volumes["pool"], group.volumes["v"]
    assert (pool.layout, pool.data, pool.metadata, pool.when_full, pool.zeroes, pool.active) == (
        "thin,pool", 1.5, 10.94, "error", True, True,
    )  # fmt: skip
    assert (volume.tags, volume.pool, volume.zeroes, volume.active) == (("a", "b=1"), "pool", False, False)
    assert (volume.origin, volume.health, volume.is_thick_snapshot) == ("w", "partial", False)
    assert group.volumes["s"].is_thick_snapshot
    assert group.placed == {"": {"/dev/a": 40}, "v": {"/dev/a": 11, "/dev/b": 10}, "s": {"/dev/b": 1}}
    assert [disk.allocatable for disk in group.disks] == [True, False]


@pytest.mark.parametrize("missing", ["pv", "lv", "seg", "pvseg"])
def test_a_report_without_its_lists_is_never_an_empty_group(missing: str) -> None:
    with pytest.raises(HostError, match="not understood"):
        lvm.parse(REPORT.replace(f'"{missing}": [', '"other": ['))


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('"lv_count":"3"', '"lv_count":"4"'),
        ('"pv_count":"2"', '"pv_count":"3"'),
        ('"lv_size":"4194304"', '"lv_size":""'),
    ],
)
def test_a_report_that_lacks_something(there: str, instead: str) -> None:
    with pytest.raises(HostError, match="not understood"):
        lvm.parse(REPORT.replace(there, instead))


def test_a_report_that_was_cut_off_anywhere() -> None:
    for end in range(0, len(REPORT) - 1, 7):
        with pytest.raises(HostError, match="not understood"):
            lvm.parse(REPORT[:end])


@pytest.mark.parametrize("text", ["", "{}", '{"report": []}', '{"report": [{"vg": [{}]}]}', "[1, 2]"])
def test_a_report_that_is_garbage(text: str) -> None:
    with pytest.raises(HostError, match="not understood"):
        lvm.parse(text)


def test_lvm_s_lock_is_taken_as_lvm_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lvm, "_LOCKS", str(tmp_path))
    path = tmp_path / "V_vg0"
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(_is_free_inside, path)
            path.unlink()  # as LVM does before it gives the lock back
            other.close()
            assert waiting.result(60) is False
    assert list(tmp_path.iterdir()) == []


def _is_free_inside(path: Path) -> bool:
    """Whether somebody else gets the lock while we have it."""
    with lvm.alone("vg0"), path.open("w") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_lock_that_cannot_be_had_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lvm, "_LOCKS", str(tmp_path / "nowhere"))
    with pytest.raises(HostError, match="LVM's lock"), lvm.alone("vg0"):
        raise AssertionError
