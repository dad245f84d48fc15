"""The quota pool where there are no project quotas; the rest is in tests/vm/guest_quota.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError, UnavailableError, UnsupportedError
from tonnage.host import mount
from tonnage.storage.pools.quota.backend import FSTYPES, PROJECTS, QuotaDirectories, make_backend


@pytest.mark.real
def test_a_disk_without_quotas_is_rejected(real_folder: Path) -> None:
    disk = real_folder / "disk"
    disk.mkdir()
    mount.mount("none", disk, "tmpfs", ["size=1m"])
    backend = make_backend(disk / "pool")
    with pytest.raises(UnavailableError, match="is on tmpfs: project quotas need xfs or ext4"):
        backend.open()
    assert not backend.is_open
    assert list(disk.iterdir()) == []


def test_parameters(tmp_path: Path) -> None:
    backend = make_backend(tmp_path / "pool")
    contents = backend.contents
    assert isinstance(contents, QuotaDirectories)
    contents.check({"allowUnenforced": "true"})
    with pytest.raises(InvalidError, match="allowUnenforced='maybe'"):
        contents.check({"allowUnenforced": "maybe"})
    with pytest.raises(InvalidError, match="erase: zero"):
        contents.check({"erase": "zero"})
    contents.fstype = "ext4"
    with pytest.raises(UnsupportedError, match='allowUnenforced: "true" in the class'):
        contents.check({})
    assert (contents.limit(), contents.fstypes) == (PROJECTS, FSTYPES)
