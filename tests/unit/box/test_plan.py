"""The plan of a box: checked against what is kept, what the machine has and what the disks have free."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs
from tests.programs import need

from tonnage.base.errors import InvalidError
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan, what_stays

MEMORY = Settings(nodes=2, pools=["fake,size=1Gi"], runtime="none")


def keep(data: DataFolder, settings: Settings) -> None:
    data.open(settings)
    data.close()


def test_every_node_has_its_own_pools(tmp_path: Path) -> None:
    made = plan(DataFolder(tmp_path / "d"), MEMORY)

    assert list(made.nodes) == ["node-1", "node-2"]
    assert made.summary == "2 nodes, 1Gi (fake) each, runtime none"
    (about,) = made.warnings
    assert about.startswith("fake pools (fake) only count")


def test_the_old_name_of_fake_pools_is_accepted_with_a_warning_and_keeps_names_and_ids(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    keep(data, Settings(nodes=2, pools=["memory,size=1Gi", "memory,name=more,size=1Gi"], runtime="none"))
    kept = data.settings()
    assert kept is not None

    made = plan(data, kept)
    assert [(p.kind.name, p.name) for p in made.nodes["node-1"]] == [("fake", "memory"), ("fake", "more")]
    assert made.settings.pools == ["fake,name=memory,size=1Gi", "fake,name=more,size=1Gi"]
    assert made.warnings[:2] == [
        "pool memory: kind memory is called fake now: write fake,name=memory",
        "pool more: kind memory is called fake now: write fake,name=more",
    ]
    assert len(plan(data, made.settings).warnings) == 1
    assert plan(data, Settings(nodes=2, pools=kept.pools, runtime="none")).nodes == made.nodes


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        (["fake,size=1Gi"], "objects stay, but volumes of fake pools are gone"),
        (["image,name=a", "fake,size=1Gi"], r"objects and volumes stay, but those of fake pools \(fake\) are gone"),
        ([], "objects and volumes stay"),
    ],
)
def test_what_stays_is_not_promised_of_fake_pools(pools: list[str], words: str) -> None:
    assert re.fullmatch(words, what_stays(Settings(pools=pools)))


@pytest.mark.parametrize(
    ("pools", "size", "words"),
    [
        (["fake"], "10", "--pool-size 10: a pool of 10 bytes holds no volume, want at least 1Mi; write .* as 10Gi"),
        (["fake,size=10"], "", "--pool fake: size=10: a pool of 10 bytes holds no volume"),
        (["fake,size=1Gi,name=a", "fake,size=1Gi,name=scratch"], "", "class tonnage-scratch .* first pool"),
        (["fake,size=1Gi,name=immediate"], "", "class tonnage-immediate of the box means the first pool"),
    ],
)
def test_new_pools_that_no_one_means_are_rejected_with_what_to_write(
    tmp_path: Path, pools: list[str], size: str, words: str
) -> None:
    data, settings = DataFolder(tmp_path / "d"), Settings(nodes=2, pools=pools, runtime="none")
    with pytest.raises(InvalidError, match=words):
        plan(data, settings, pool_size=size)
    if not size:  # a cluster that was made so by an older version goes on
        keep(data, settings)
        assert plan(data, settings).nodes


def test_a_plan_made_of_what_is_kept_is_the_same_again(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    first = plan(data, Settings(nodes=2, pools=["fake"], runtime="none"), pool_size="30716Mi")
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
    with pytest.raises(InvalidError, match="has 2 nodes; with 1"):
        plan(data, Settings(nodes=1, pools=MEMORY.pools, runtime="none"))


def test_pools_may_grow_and_be_added_and_not_lost(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    keep(data, plan(data, MEMORY).settings)

    grown = Settings(nodes=2, pools=["fake,size=2Gi", "fake,name=more,size=1Gi"], runtime="none")
    assert [p.name for p in plan(data, grown).nodes["node-1"]] == ["fake", "more"]
    with pytest.raises(InvalidError, match="has pool fake"):
        plan(data, Settings(nodes=2, pools=["fake,name=other,size=1Gi"], runtime="none"))


@pytest.mark.real
def test_a_volume_group_is_of_one_node(tmp_path: Path, real_folder: Path) -> None:
    need("lvm")
    data = DataFolder(tmp_path / "d")

    made = plan(data, Settings(nodes=1, pools=["lvm:vg0,size=1Gi"], runtime="none"))
    assert [pool.place for pool in made.nodes["node-1"]] == ["vg0"]
    with pytest.raises(InvalidError, match="volume group vg0 can be the pool of one node only"):
        plan(data, Settings(nodes=2, pools=["lvm:vg0,size=1Gi"], runtime="none"))


@pytest.mark.real
def test_overcommit_is_said_plainly(tmp_path: Path, real_folder: Path) -> None:
    huge = Settings(nodes=1, pools=["image,size=900Ti,sparse=yes,overcommit=yes"], runtime="none")

    warnings = plan(DataFolder(tmp_path / "d"), huge).warnings

    assert len(warnings) == 1
    assert warnings[0].startswith("overcommitted: the pools may allocate 900Ti together")


@pytest.mark.real
def test_the_default_is_thick_as_everywhere_and_publishes_what_the_disk_has(tmp_path: Path, real_folder: Path) -> None:
    made = plan(DataFolder(tmp_path / "d"), Settings(nodes=2, runtime="none"), pool_size="900Ti")

    assert [(p.limits.sparse, p.limits.ratio) for pools in made.nodes.values() for p in pools] == [(True, 1.0)] * 2
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
        with pytest.raises(InvalidError, match=words):
            plan(data, structs.replace(MEMORY, sources=[str(wrong)]))
