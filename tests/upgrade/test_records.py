"""Records that earlier commits wrote where no pool can be opened: tags of LVM, the files of persistent memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace as changed
from tests.upgrade.archive import COMMITS, NEWER, later, read, unpack

from tonnage.csi.driver.driver import context_of
from tonnage.host import lvm
from tonnage.storage.pools.base.record import FORMAT
from tonnage.storage.pools.directory.directory import Directory
from tonnage.storage.pools.directory.erase_queue import Erasures
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind, change, decode, encode, found_at, is_ours
from tonnage.storage.pools.pmem.erase_queue import PmemErasures
from tonnage.storage.pools.pmem.region import PmemRegion
from tonnage.storage.pools.static.records import DiskRecords

MI = 1024**2
LVS: dict[str, dict[str, list[dict[str, str]]]] = {commit: read(commit, "lvm") for commit in COMMITS}
POOLS: dict[str, dict[str, dict[str, Any]]] = {commit: read(commit, "pools") for commit in COMMITS}
FORMER = lvm.tag("tonnage", "v", value="1")
"""The tag of the format without checksum."""


TAGGED = [
    pytest.param(POOLS[commit][pool], lv, id=f"{commit} {pool} {lv['lv_name']}")
    for commit, pools in LVS.items()
    for pool, lvs in pools.items()
    for lv in lvs
    if lv["lv_tags"]
]


@pytest.mark.parametrize(("pool", "lv"), TAGGED)
def test_tags(pool: dict[str, Any], lv: dict[str, str]) -> None:
    tags = lv["lv_tags"].split(",")
    assert is_ours(tags)
    entry = found_at("vg0", lv["lv_name"], decode(tags))
    record = entry.record
    if entry.kind is TagKind.VOLUME:
        assert record.is_trash == (record.name in pool.get("trash", {}))
        expected = {**pool["volumes"], **pool.get("trash", {})}[record.name]
        assert (record.size, record.block, record.pending) == (
            expected["size"], expected["block"], expected.get("pending", False),
        )  # fmt: skip
        assert record.is_trash or context_of(record.volume()) == expected["context"]
        assert 0 < record.length <= int(lv["lv_size"].removesuffix("B"))
        assert record.mutable == expected.get("mutable", {})
    assert sorted(encode(entry)) == sorted(tags)  # as it was: written anew only with a change
    if FORMER in tags:
        check_anew(tags)


def check_anew(tags: list[str]) -> None:
    """Tags without a checksum get one when they are written anew."""
    entry = decode(tags)
    after: TagEntry = replace(entry, record=changed(entry.record, version=FORMAT))
    words = change(tags, after)
    added = {words[at + 1] for at in range(0, len(words), 2) if words[at] == "--addtag"}
    removed = {words[at + 1] for at in range(0, len(words), 2) if words[at] == "--deltag"}
    assert FORMER in removed
    assert decode(sorted((set(tags) | added) - removed)) == after


@pytest.mark.parametrize("commit", COMMITS)
def test_what_tags_are_there(commit: str) -> None:
    kinds = {
        pool: {decode(lv["lv_tags"].split(",")).kind for lv in lvs if lv["lv_tags"]}
        for pool, lvs in LVS[commit].items()
    }
    assert kinds["lvm-thick"] == {TagKind.VOLUME, TagKind.SNAPSHOT, TagKind.ERASING, TagKind.ORIGIN}
    assert kinds["lvm-thin"] == {TagKind.VOLUME, TagKind.SNAPSHOT}


@pytest.mark.parametrize(("commit", "trash"), [("6cf5dba", []), ("6914cf6a", ["trashed"])])
def test_files_of_persistent_memory(commit: str, trash: list[str], tmp_path: Path) -> None:
    """Those of a region beside its namespaces: a volume, one that is being made, one that is being erased."""
    unpack(commit, "pools/pmem", tmp_path)
    region = PmemRegion("region0")
    region.directory = Directory(tmp_path / "pmem", "pmem")
    region.directory.open()
    records, damaged = region.directory.records()
    assert not damaged
    assert sorted(records) == sorted(["half-made", "volume", *trash])
    assert [name for name, record in records.items() if record.is_trash] == trash
    assert (records["volume"].length, records["half-made"].length) == (66 * MI, 0)
    assert records["volume"].owner["csi.storage.k8s.io/pvc/name"] == "data"
    erasures = PmemErasures(lambda size: None)
    erasures.open([region], records)
    assert [(job.name, job.key, job.done) for job in erasures.jobs()] == [("erased", str(UUID(int=3)), MI)]
    erasures.close()
    region.directory.close()


@pytest.mark.parametrize("commit", COMMITS)
def test_records_of_disks(commit: str, tmp_path: Path) -> None:
    unpack(commit, "pools/static-records", tmp_path)
    for _ in range(2):  # the first time writes them anew
        records = DiskRecords(tmp_path / "static-records")
        records.open("p")
        assert not records.damaged
        volume, job = records.disks["sda"].volume, records.disks["sdb"].job
        assert volume is not None
        assert job is not None
        assert (volume.name, volume.block, volume.owner["driver"]) == ("volume", True, "csi.tonnage.dev")
        assert (job.name, job.method, job.done) == ("cleaned", "zero", MI)
        records.close()


def open_pmem(folder: Path) -> list[str]:
    region = PmemRegion("region0")
    region.directory = Directory(folder, "pmem")
    region.directory.open()
    records, damaged = region.directory.records()
    erasures = PmemErasures(lambda size: None)
    erasures.open([region], records)
    assert not records
    assert not erasures.jobs()
    erasures.close()
    region.directory.close()
    return [*damaged.values(), *erasures.faults]


def open_disks(folder: Path) -> list[str]:
    records = DiskRecords(folder)
    records.open("p")
    assert not records.disks
    records.close()
    return list(records.damaged.values())


def open_erasures(folder: Path) -> list[str]:
    queue = Erasures(folder, "image", lambda job: None)
    queue.open()
    assert not queue.jobs()
    queue.close()
    return queue.faults()


@pytest.mark.parametrize(
    ("archive", "opened", "count"),
    [
        pytest.param("pmem", open_pmem, 4, id="volumes, trash and job of persistent memory"),
        pytest.param("static-records", open_disks, 2, id="volume and job of disks"),
        pytest.param("image-sparse", open_erasures, 1, id="job of an image pool"),
    ],
)
def test_a_later_format_is_left_alone(
    archive: str, opened: Callable[[Path], list[str]], count: int, tmp_path: Path
) -> None:
    unpack(COMMITS[-1], f"pools/{archive}", tmp_path)
    for path in (tmp_path / archive).rglob("*.json"):
        path.write_bytes(later(path.read_bytes()))
    before = files(tmp_path)
    faults = opened(tmp_path / archive)
    assert [NEWER in fault for fault in faults] == [True] * count
    assert files(tmp_path) == before


def files(folder: Path) -> dict[Path, bytes | int]:
    """All files: of images the size, of others the content."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.stat().st_size if path.suffix == ".img" else path.read_bytes() for path in found}
