"""Which entries of a discovery directory are volumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import UnavailableError
from tonnage.host import mount
from tonnage.storage.pools.static.discovery import check_directory, look, readable

GI, MI = 1024**3, 1024**2


@pytest.mark.parametrize(
    ("size", "shown"), [(10 * GI + 1, 10 * GI), (9 * GI + MI + 5, 9 * GI + MI), (10 * MI - 1, 10 * MI - 1)]
)
def test_sizes_are_rounded_to_readable_ones(size: int, shown: int) -> None:
    assert readable(size) == shown


def test_a_directory_that_others_can_write_to_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    check_directory(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(UnavailableError, match="written to by others than root"):
        check_directory(tmp_path)
    with pytest.raises(UnavailableError, match="make it and mount the disks below it"):
        check_directory(tmp_path / "none")


@pytest.mark.real
def test_entries(real_folder: Path) -> None:
    for name in ("disk", "plain", "double"):
        (real_folder / name).mkdir()
    mount.mount("none", real_folder / "disk", "tmpfs", ["size=20m"])
    mount.bind(real_folder / "disk", real_folder / "double")
    (real_folder / "broken").symlink_to("/dev/none")
    (real_folder / "file").touch()
    found = look(real_folder)
    assert [(disk.entry, disk.size, disk.fstype) for disk in found.disks.values()] == [("disk", 20 * MI, "tmpfs")]
    assert {entry: why.split(":")[0] for entry, why in found.rejected.items()} == {
        "broken": "it leads to /dev/none, which does not exist",
        "double": "it is the same disk as disk",
        "file": "it is neither a mount point nor a block device",
        "plain": "it is a directory and no mount point",
    }
