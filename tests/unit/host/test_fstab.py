"""Which disks should be mounted."""

from __future__ import annotations

from pathlib import Path

from tonnage.host import fstab


def test_what_is_below_a_mount_point_without_a_mount(tmp_path: Path) -> None:
    (tmp_path / "fast disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "fast disk")
    table = tmp_path / "fstab"
    point = str(tmp_path / "fast disk").replace(" ", "\\040")
    table.write_text(
        f"/dev/sda1 / ext4\n\n#/dev/sdb {tmp_path} xfs\nproc /proc proc\nUUID=1 none swap\n/dev/x {point} xfs\n"
    )
    for below in ("fast disk", "fast disk/pool", "link/pool"):
        assert fstab.missing(tmp_path / below, table) == str(tmp_path / "fast disk")
    assert fstab.missing(tmp_path / "other", table) == ""
    assert fstab.missing(Path("/proc/self"), table) == "", "it is mounted"
    assert fstab.missing(tmp_path, tmp_path / "none") == ""
