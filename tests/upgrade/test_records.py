"""Records that commit 6cf5dba wrote where no pool can be opened: tags of LVM, the files of persistent memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace as changed
from tests.upgrade.archive import read, unpack

from tonnage.csi.driver.driver import context_of
from tonnage.host import lvm
from tonnage.storage.pools.base.record import FORMAT
from tonnage.storage.pools.directory.directory import Directory
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind, change, decode, encode, found_at, is_ours
from tonnage.storage.pools.pmem.erase_queue import PmemErasures
from tonnage.storage.pools.pmem.region import PmemRegion
from tonnage.storage.pools.static.records import DiskRecords

MI = 1024**2
LVS: dict[str, list[dict[str, str]]] = read("lvm")
VOLUMES = [
    pytest.param(pool, lv, id=f"{pool} {lv['lv_name']}") for pool, lvs in LVS.items() for lv in lvs if lv["lv_tags"]
]
POOLS: dict[str, dict[str, Any]] = read("pools")


@pytest.mark.parametrize(("pool", "lv"), VOLUMES)
def test_tags(pool: str, lv: dict[str, str]) -> None:
    tags = lv["lv_tags"].split(",")
    assert is_ours(tags)
    entry = found_at("vg0", lv["lv_name"], decode(tags))
    record = entry.record
    if entry.kind is TagKind.VOLUME:
        expected = POOLS[pool]["volumes"][record.name]
        assert (record.size, record.block, record.pending) == (
            expected["size"], expected["block"], expected.get("pending", False),
        )  # fmt: skip
        assert context_of(record.volume()) == expected["context"]
        assert 0 < record.length <= int(lv["lv_size"].removesuffix("B"))
        assert record.mutable == expected.get("mutable", {})
    assert sorted(encode(entry)) == sorted(tags)  # as it was: written anew only with a change


@pytest.mark.parametrize(("pool", "lv"), VOLUMES)
def test_tags_written_anew_have_a_checksum(pool: str, lv: dict[str, str]) -> None:
    tags = lv["lv_tags"].split(",")
    entry = decode(tags)
    after: TagEntry = replace(entry, record=changed(entry.record, version=FORMAT))
    words = change(tags, after)
    added = {words[at + 1] for at in range(0, len(words), 2) if words[at] == "--addtag"}
    removed = {words[at + 1] for at in range(0, len(words), 2) if words[at] == "--deltag"}
    assert lvm.tag("tonnage", "v", value="1") in removed
    assert decode(sorted((set(tags) | added) - removed)) == after


def test_what_tags_are_there() -> None:
    kinds = {pool: {decode(lv["lv_tags"].split(",")).kind for lv in lvs if lv["lv_tags"]} for pool, lvs in LVS.items()}
    assert kinds["lvm-thick"] == {TagKind.VOLUME, TagKind.SNAPSHOT, TagKind.ERASING, TagKind.ORIGIN}
    assert kinds["lvm-thin"] == {TagKind.VOLUME, TagKind.SNAPSHOT}


def test_files_of_persistent_memory(tmp_path: Path) -> None:
    """Those of a region beside its namespaces: a volume, one that is being made, one that is being erased."""
    unpack("pools/pmem", tmp_path)
    region = PmemRegion("region0")
    region.directory = Directory(tmp_path / "pmem", "pmem")
    region.directory.open()
    records, _ = region.directory.records()
    assert sorted(records) == ["half-made", "volume"]
    assert (records["volume"].length, records["half-made"].length) == (66 * MI, 0)
    assert records["volume"].owner["csi.storage.k8s.io/pvc/name"] == "data"
    erasures = PmemErasures(lambda size: None)
    erasures.open([region], records)
    assert [(job.name, job.key, job.done) for job in erasures.jobs()] == [("erased", str(UUID(int=3)), MI)]
    erasures.close()
    region.directory.close()


def test_records_of_disks(tmp_path: Path) -> None:
    unpack("pools/static-records", tmp_path)
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
