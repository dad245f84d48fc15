"""Cgroups of pods of our own kubelet: made, removed, and limited in their processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage_box.kubelet.pod_cgroups import PodCgroups

UID = "0f1e2d3c-1111-2222-3333-444455556666"


def _hierarchy(root: Path, *, v2: bool) -> Path:
    """An empty hierarchy that looks like the kernel's."""
    top = root if v2 else root / "blkio"
    top.mkdir(exist_ok=True)
    (top / "cgroup.procs").touch()
    if v2:
        (top / "cgroup.controllers").write_text("cpu io memory\n")
        (top / "cgroup.subtree_control").write_text("")
    return top


def test_groups_of_our_own_pods(tmp_path: Path) -> None:
    top = _hierarchy(tmp_path, v2=True)
    (top / "tonnage").mkdir()
    (top / "tonnage" / "cgroup.subtree_control").touch()
    cgroups = PodCgroups(tmp_path)
    for _ in range(2):
        made = cgroups.make_pod(UID)
    assert cgroups.pod(UID).path == made.path
    assert [(g / "cgroup.subtree_control").read_text() for g in (top, top / "tonnage")] == ["+io", "+io"]
    for _ in range(2):
        cgroups.remove_pod(UID)
    assert not made.path.exists()
    cgroups.remove_pod("../tonnage")
    assert (top / "tonnage").exists()


@pytest.mark.parametrize("v2", [True, False])
def test_processes_of_our_own_pods(tmp_path: Path, v2: bool) -> None:
    top = _hierarchy(tmp_path, v2=v2)
    (top / "tonnage").mkdir()
    (top / "tonnage" / "cgroup.subtree_control").touch()
    if not v2:
        (tmp_path / "pids").mkdir()
        (tmp_path / "pids" / "cgroup.procs").touch()
    made = PodCgroups(tmp_path).make_pod(UID)
    for _ in range(2):
        made.limit_processes(7)
    counts = made.path if v2 else tmp_path / "pids" / "tonnage" / f"pod{UID}"
    assert (counts / "pids.max").read_text() == "7"
    if v2:
        assert (
            top / "tonnage" / "cgroup.subtree_control"
        ).read_text() == "+pids"  # the kernel adds, a file is replaced
    group = PodCgroups(tmp_path).own_pod(UID)
    assert group is not None
    group.add(123)
    assert [(path / "cgroup.procs").read_text() for path in {made.path, counts}] == ["123"] * len({made.path, counts})
