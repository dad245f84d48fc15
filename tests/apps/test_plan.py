"""The plan of a box: checked against what is kept, what the machine has and what the disks have free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from tonnage.apps.data import DataFolder, Settings
from tonnage.apps.plan import plan
from tonnage.errors import Invalid

MEMORY = Settings(nodes=2, pools=["memory,size=1Gi"], runtime="none")


def keep(data: DataFolder, settings: Settings) -> None:
    data.open(settings)
    data.close()


def test_every_node_has_its_own_pools(tmp_path: Path) -> None:
    made = plan(DataFolder(tmp_path / "d"), MEMORY)

    assert list(made.nodes) == ["node-1", "node-2"]
    assert made.summary == "2 nodes, 1Gi (memory) each, runtime none"
    assert not made.warnings


def test_a_plan_made_of_what_is_kept_is_the_same_again(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    first = plan(data, Settings(nodes=2, pools=["memory"], runtime="none"), pool_size="30716Mi")
    keep(data, first.settings)
    kept = data.settings()

    assert kept is not None
    again = plan(data, kept)
    assert again.nodes == first.nodes
    assert again.settings == first.settings
    assert next(iter(again.nodes.values()))[0].size == 30716 * 1024**2


def test_nodes_may_be_added_and_not_lost(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    keep(data, plan(data, MEMORY).settings)

    more = Settings(nodes=3, pools=MEMORY.pools, runtime="none")
    assert len(plan(data, more).nodes) == 3
    with pytest.raises(Invalid, match="has 2 nodes; with 1"):
        plan(data, Settings(nodes=1, pools=MEMORY.pools, runtime="none"))


def test_pools_may_grow_and_be_added_and_not_lost(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    keep(data, plan(data, MEMORY).settings)

    grown = Settings(nodes=2, pools=["memory,size=2Gi", "memory,name=more,size=1Gi"], runtime="none")
    assert [p.name for p in plan(data, grown).nodes["node-1"]] == ["memory", "more"]
    with pytest.raises(Invalid, match="has pool memory"):
        plan(data, Settings(nodes=2, pools=["memory,name=other,size=1Gi"], runtime="none"))


@pytest.mark.real
def test_a_volume_group_is_of_one_node(tmp_path: Path, real_folder: Path, need_program: Callable[[str], None]) -> None:
    need_program("lvm")
    data = DataFolder(tmp_path / "d")

    made = plan(data, Settings(nodes=1, pools=["lvm:vg0,size=1Gi"], runtime="none"))
    assert [pool.group for pool in made.nodes["node-1"]] == ["vg0"]
    with pytest.raises(Invalid, match="volume group vg0 can be the pool of one node only"):
        plan(data, Settings(nodes=2, pools=["lvm:vg0,size=1Gi"], runtime="none"))


@pytest.mark.real
def test_overcommit_is_said_plainly(tmp_path: Path, real_folder: Path) -> None:
    huge = Settings(nodes=1, pools=["image,size=900Ti,sparse=yes,overcommit=yes"], runtime="none")

    warnings = plan(DataFolder(tmp_path / "d"), huge).warnings

    assert len(warnings) == 1
    assert warnings[0].startswith("overcommitted: the pools may promise 900Ti together")


@pytest.mark.real
def test_the_default_grows_with_what_is_written_and_publishes_what_the_disk_has(
    tmp_path: Path, real_folder: Path
) -> None:
    made = plan(DataFolder(tmp_path / "d"), Settings(nodes=2, runtime="none"), pool_size="900Ti")

    assert [(p.sparse, p.overcommit) for pools in made.nodes.values() for p in pools] == [(True, 1.0)] * 2
    (warning,) = made.warnings
    assert warning.startswith("the pools are 1800Ti together, the disk under ")
    assert "they publish no more than that" in warning


def test_folders_of_content_are_kept_and_must_be_what_they_seem(tmp_path: Path) -> None:
    data, folder, link = DataFolder(tmp_path / "d"), tmp_path / "models", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)

    made = plan(data, structs.replace(MEMORY, sources=[str(folder)]))
    assert made.settings.sources == [str(folder)]
    for wrong, words in ((tmp_path / "none", "there is no such folder"), (link, f"want the folder itself, {folder}")):
        with pytest.raises(Invalid, match=words):
            plan(data, structs.replace(MEMORY, sources=[str(wrong)]))
