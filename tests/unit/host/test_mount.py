"""Mounts: the table, and real ones (tmpfs and binds)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.errors import HostError, PreconditionError
from tonnage.host import mount

TABLE = r"""36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
37 35 0:5 /loop3 /a\040b\011c\134d\012e\043 rw shared:7 master:2 - devtmpfs dev\040tmpfs rw,size=1
38 35 0:6 / /plain ro - tmpfs none rw
broken line
39 35 0:7 / /no-separator rw tmpfs none rw
"""


def test_table_with_escapes_and_optional_fields() -> None:
    first, second, third = mount.parse(TABLE)
    assert (first.root, first.target, first.fstype, first.source) == ("/mnt1", "/mnt2", "ext3", "/dev/root")
    assert (second.root, second.target, second.source) == ("/loop3", "/a b\tc\\d\ne#", "dev tmpfs")
    assert (third.mount_id, third.device, third.options) == (38, "0:6", "ro")


def test_table_of_this_machine_has_a_root() -> None:
    assert "/" in {entry.target for entry in mount.mounts()}


def test_is_mount(tmp_path: Path) -> None:
    assert mount.is_mount("/proc")
    assert not mount.is_mount(tmp_path)
    assert not mount.is_mount(tmp_path / "absent")


def test_a_path_that_cannot_be_is_no_mount(tmp_path: Path) -> None:
    assert not mount.is_mount(tmp_path / ("x" * 300))
    assert not mount.umount(tmp_path / ("x" * 300))


def test_umount_of_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: umount")
    assert not mount.umount(tmp_path / "absent")
    assert not mount.umount(tmp_path)


@pytest.mark.real
class TestReal:
    def test_mount_bind_read_only_and_away(self, real_folder: Path) -> None:
        source, writable, readonly = (real_folder / name for name in ("a b", "w", "r"))
        for folder in (source, writable, readonly):
            folder.mkdir()
        mount.mount("none", source, "tmpfs", ["nosuid", "nodev", "size=1m", "mode=0700"])
        (source / "file").write_text("x")
        mount.bind(source, writable)
        mount.bind(source, readonly, readonly=True)

        assert all(map(mount.is_mount, (source, writable, readonly)))
        assert (readonly / "file").read_text() == "x"
        (writable / "file").write_text("y")
        with pytest.raises(OSError, match="Read-only"):
            (readonly / "file").write_text("z")
        [entry] = [entry for entry in mount.mounts() if entry.target == str(source)]
        assert entry.options.startswith("rw,nosuid,nodev")
        for folder in (readonly, writable, source):
            assert mount.umount(folder)
            assert not mount.umount(folder)

    def test_bind_of_the_same_file_system_is_seen_as_a_mount(self, real_folder: Path) -> None:
        source, target = real_folder / "s", real_folder / "t"
        source.mkdir()
        target.mkdir()
        mount.bind(source, target)
        assert mount.is_mount(target)
        assert not mount.is_mount(source)
        mount.umount(target)

    def test_bind_of_a_file_with_options(self, real_folder: Path) -> None:
        source, target = real_folder / "s", real_folder / "t"
        source.write_text("content")
        target.touch()
        mount.bind(source, target, options=["nodev", "noatime"])
        [entry] = [entry for entry in mount.mounts() if entry.target == str(target)]
        assert {"nodev", "noatime"} <= set(entry.options.split(","))
        mount.umount(target)

    def test_symlinks_are_not_followed(self, real_folder: Path) -> None:
        real, link = real_folder / "real", real_folder / "link"
        real.mkdir()
        link.symlink_to(real)
        with pytest.raises(PreconditionError, match="symlink"):
            mount.mount("none", link, "tmpfs")
        with pytest.raises(PreconditionError, match="symlink"):
            mount.bind(real_folder, link)
        mount.mount("none", real, "tmpfs")
        assert not mount.umount(link)
        assert not mount.is_mount(link)
        assert mount.umount(real)

    def test_failure_in_the_kernels_words(self, real_folder: Path) -> None:
        with pytest.raises(HostError, match=r"(?i)unknown parameter 'nosuchoption'"):
            mount.mount("none", real_folder, "tmpfs", ["nosuchoption"])
        with pytest.raises(HostError, match="No such device"):
            mount.mount("none", real_folder, "nosuchfs")
        with pytest.raises(HostError, match="No such file"):
            mount.bind(real_folder, real_folder / "absent")
        assert not mount.is_mount(real_folder)

    def test_busy(self, real_folder: Path) -> None:
        mount.mount("none", real_folder, "tmpfs")
        with (real_folder / "open").open("w"), pytest.raises(PreconditionError, match="in use"):
            mount.umount(real_folder)
        assert mount.umount(real_folder)
