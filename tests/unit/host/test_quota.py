"""Project quotas, on a real xfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.host.mounted import MI, Mounted

from tonnage.base.errors import HostError
from tonnage.host import quota
from tonnage.host.descriptor import opened

pytestmark = pytest.mark.real


def _in_project(folder: Path, project: int) -> None:
    folder.mkdir()
    with opened(folder) as fd:
        assert quota.project(fd) == 0
        quota.set_project(fd, project)


def test_what_is_made_in_a_directory_belongs_to_its_project(real_folder: Path, mounted: Mounted) -> None:
    mounted("xfs")
    _in_project(real_folder / "xfs" / "a", 42)
    (real_folder / "xfs" / "a" / "file").touch()
    for path in ("a", "a/file"):
        with opened(real_folder / "xfs" / path) as fd:
            assert quota.project(fd) == 42


def test_a_project_is_limited_and_counted(real_folder: Path, mounted: Mounted) -> None:
    try:
        root = mounted("xfs", "prjquota")
    except HostError as failure:
        pytest.skip(f"this kernel has no quotas of xfs: {failure}")
    assert quota.is_enforced(root)
    folder = real_folder / "xfs" / "a"
    _in_project(folder, 42)
    quota.set_limit(root, 42, 8 * MI)
    (folder / "small").write_bytes(b"x" * 4 * MI)
    with pytest.raises(OSError, match=r"No space|quota"):
        (folder / "large").write_bytes(b"x" * 8 * MI)
    (folder / "large").unlink()
    os.sync()
    found = quota.get(root, 42)
    assert (found.limit, found.used, found.inodes) == (8 * MI, 4 * MI, 2)


def test_without_quotas(mounted: Mounted) -> None:
    assert not quota.is_enforced(mounted("ext4"))
