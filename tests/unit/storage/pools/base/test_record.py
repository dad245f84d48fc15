"""Records of volumes: what is valid, what they become, and the table of them in memory."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from tonnage.base.errors import ExhaustedError, HostError, NotFoundError
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.record import Records, VolumeRecord, check, new_record

RECORD = VolumeRecord("a", 4096, UUID(int=1), fstype="ext4")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a/b"}, "volume name"),
        ({"state": "odd"}, "odd"),
        ({"parameters": {"erase": "maybe"}}, "erase"),
        ({"size": 0}, "its size is 0"),
        ({"created": -1.0}, "created at"),
        ({"project": 2**32}, "in project"),
        ({"block": True}, "raw block with a file system"),
        ({"fstype": ""}, "no file system"),
        ({"mkfs": "-Z"}, "mkfsOptions"),
    ],
)
def test_records_that_are_damaged(change: dict[str, object], words: str) -> None:
    check(RECORD)
    with pytest.raises(ValueError, match=words):
        check(replace(RECORD, **change))


def test_a_new_record_says_what_was_requested() -> None:
    request = VolumeRequest("b", 1, parameters={"mkfsOptions": "-i 4096", "source": "dir:///x"}, mutable={"iops": ""})
    made = new_record(request, 4096, "ext4", uuid=UUID(int=2), created=5.0)
    assert (made.mkfs, made.from_folder, made.mutable, made.size) == ("-i 4096", "dir:///x", {}, 4096)
    copied = VolumeRequest("c", 1, source=VolumeOrigin(volume="b"))
    used = replace(made, state="formatted")
    for origin, folder in ((made, "dir:///x"), (used, "")):
        copy = new_record(copied, 4096, "ext4", uuid=UUID(int=3), created=6.0, origin=origin)
        assert (copy.mkfs, copy.from_folder, copy.source) == ("-i 4096", folder, VolumeOrigin(volume="b"))


def test_an_empty_volume_has_no_source_and_no_content() -> None:
    """So a sweep may delete it while no pod had it."""
    assert (RECORD.source, RECORD.content, RECORD.volume().source) == (None, "", None)
    for changes in ({"from_snapshot": "s"}, {"from_volume": "v"}, {"from_folder": "dir:///x"}):
        assert replace(RECORD, **changes).content != ""


def test_the_table_counts_and_names_damage() -> None:
    records = Records("pool p", most=8192)
    records.volumes["a"], records.damaged["b"] = RECORD, "it is blank"
    assert records.get("a") is RECORD
    with pytest.raises(NotFoundError, match="pool p has no volume 'c'"):
        records.get("c")
    with pytest.raises(HostError, match=r"record of volume b in pool p is damaged \(it is blank\)"):
        records.get("b")
    records.reserve("a", 8192)
    with pytest.raises(ExhaustedError):
        records.reserve("c", 1)
    records.reserve("a", -8192)
    records.put_back(RECORD)
    assert records.used == 4096
