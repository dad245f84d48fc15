"""Volumes given to a pod's group."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tonnage_box.kubelet.volumes import fsgroup


def test_fs_group_follows_no_symlink(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: gives files away")
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o600)
    volume = tmp_path / "volume"
    (volume / "sub").mkdir(parents=True)
    (volume / "sub" / "file").write_text("")
    (volume / "link").symlink_to(outside)
    fsgroup.apply(str(volume), 4321, policy=None)
    assert (outside.stat().st_gid, stat.S_IMODE(outside.stat().st_mode)) == (0, 0o600)
    assert (volume / "link").lstat().st_gid == 4321
    for path, extra in ((volume, 0o2770), (volume / "sub", 0o2770), (volume / "sub" / "file", 0o660)):
        assert path.stat().st_gid == 4321
        assert stat.S_IMODE(path.stat().st_mode) & extra == extra


def test_fs_group_on_root_mismatch_looks_at_the_root_only(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: gives files away")
    fsgroup.apply(str(tmp_path), 4321, policy=None)
    (tmp_path / "later").write_text("")
    fsgroup.apply(str(tmp_path), 4321, policy="OnRootMismatch")
    assert (tmp_path / "later").stat().st_gid in (0, 4321)
    os.chown(tmp_path / "later", -1, 0)
    fsgroup.apply(str(tmp_path), 4321, policy="OnRootMismatch")
    assert (tmp_path / "later").stat().st_gid == 0
    fsgroup.apply(str(tmp_path), 4321, policy="Always")
    assert (tmp_path / "later").stat().st_gid == 4321


@pytest.mark.parametrize(
    ("policy", "fstype", "modes", "read_only", "expected"),
    [
        ("None", "ext4", ["ReadWriteOnce"], False, False),
        ("File", "", ["ReadWriteMany"], False, True),
        ("File", "", ["ReadWriteOnce"], True, False),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteOnce"], False, True),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteOncePod"], False, True),
        ("ReadWriteOnceWithFSType", "", ["ReadWriteOnce"], False, False),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteOnce", "ReadOnlyMany"], False, False),
    ],
)
def test_when_the_kubelet_sets_the_group(
    policy: str, fstype: str, modes: list[str], read_only: bool, expected: bool
) -> None:
    assert fsgroup.wanted(policy, fstype=fstype, access_modes=modes, read_only=read_only) is expected
