"""subPaths as mounts of their own: taking them away never touches what lies in the volume."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, InvalidError
from tonnage.host import mount
from tonnage_box.kubelet.volumes import subpaths


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume with a folder, a folder in it, and files in both."""
    deep = tmp_path / "volume" / "data" / "deep"
    deep.mkdir(parents=True)
    (deep / "below").write_text("kept")
    (deep.parent / "file").write_text("kept")
    return tmp_path / "volume"


def _place(tmp_path: Path, index: int) -> Path:
    return tmp_path / "subpaths" / "vol" / "main" / str(index)


@pytest.mark.real
def test_removing_subpaths_keeps_what_is_in_the_volume(real_folder: Path, volume: Path) -> None:
    folder, file = _place(real_folder, 0), _place(real_folder, 1)
    subpaths.bind(str(volume), "data", str(folder), read_only=False)
    subpaths.bind(str(volume), "data/file", str(file), read_only=True)
    assert (folder / "deep" / "below").read_text() == "kept"
    assert file.read_text() == "kept"

    subpaths.remove(str(real_folder / "subpaths"))

    assert not (real_folder / "subpaths").exists()
    assert (volume / "data" / "deep" / "below").read_text() == "kept"
    assert (volume / "data" / "file").read_text() == "kept"


@pytest.mark.real
def test_mounts_on_top_of_one_another_all_go(real_folder: Path, volume: Path) -> None:
    place = _place(real_folder, 0)
    subpaths.bind(str(volume), "data", str(place), read_only=False)
    mount.bind(volume / "data", place)

    subpaths.remove(str(real_folder / "subpaths"))

    assert not place.exists()
    assert (volume / "data" / "file").read_text() == "kept"


def test_files_that_bind_did_not_make_are_kept(tmp_path: Path) -> None:
    foreign = _place(tmp_path, 0) / "file"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("kept")

    with pytest.raises(HostError, match="cannot remove"):
        subpaths.remove(str(tmp_path / "subpaths"))

    assert foreign.read_text() == "kept"


def test_removing_nothing_is_fine(tmp_path: Path) -> None:
    subpaths.remove(str(tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []


def test_a_symlink_that_leads_out_is_rejected(tmp_path: Path, volume: Path) -> None:
    (volume / "out").symlink_to(tmp_path)
    with pytest.raises(InvalidError, match="leads out of its volume"), subpaths.opened(str(volume), "out/new"):
        raise AssertionError("opened")
    assert not (tmp_path / "new").exists()


def test_a_subpath_is_resolved_beneath_its_volume(tmp_path: Path) -> None:
    volume = tmp_path / "v"
    (volume / "in").mkdir(parents=True)
    (volume / "good").symlink_to("in")
    (volume / "bad").symlink_to(tmp_path)
    (volume / "worse").symlink_to("../..")
    with subpaths.opened(str(volume), "good") as fd:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(volume / "in")
    with subpaths.opened(str(volume), "new/deep") as fd:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(volume / "new" / "deep")
    for path in ("bad", "worse", "bad/x/y", "../v", "/etc"):
        with pytest.raises(InvalidError), subpaths.opened(str(volume), path):
            pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["v"]
