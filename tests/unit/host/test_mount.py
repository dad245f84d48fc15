"""Mounts: the table, and real ones (tmpfs and binds)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.kills.fusedisk import Disk
from tests.forked import forked
from tests.programs import need

from tonnage.base.errors import HostError, PreconditionError
from tonnage.host import libc, mount, nofollow
from tonnage.host.descriptor import closing, opened

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

    def test_a_copy_is_attached_elsewhere_and_keeps_nothing_busy(self, real_folder: Path) -> None:
        source, target = real_folder / "s", real_folder / "t"
        source.mkdir()
        target.mkdir()
        mount.mount("none", source, "tmpfs")
        libc.mount(None, os.fsencode(source), None, 1 << 20, None)  # MS_SHARED, as a machine with systemd has it
        (source / "sub").mkdir()
        mount.mount("none", source / "sub", "tmpfs")
        with closing(mount.clone(source, ["ro", "nodev"])) as tree, opened(target, os.O_PATH) as at:
            assert [m.target for m in mount.mounts() if m.target.startswith(str(target))] == []
            mount.attach(tree, at)
            assert mount.mount_id(tree) in [m.mount_id for m in mount.mounts() if m.target == str(target)]
        copies = [m for m in mount.mounts() if m.target.startswith(str(target))]
        assert [m.target for m in copies] == [str(target), str(target / "sub")]
        assert all({"ro", "nodev"} <= set(m.options.split(",")) for m in copies)
        mount.mount("none", target / "sub", "tmpfs")
        assert mount.umount(source / "sub")
        assert not mount.umount(source / "sub")  # what is mounted in the copy is not mounted here
        while mount.umount(target / "sub"):
            continue
        assert mount.umount(target)
        assert mount.umount(source)

    def test_a_copy_without_an_end_ends_with_its_descriptor(self, real_folder: Path) -> None:
        with closing(mount.detached("name", "tmpfs", ["mode=700"])) as tree:
            os.mkdir("inside", dir_fd=tree)
            with pytest.raises(OSError, match="Invalid argument"):
                mount.set_options(os.open("inside", os.O_PATH, dir_fd=tree), ["ro"])  # not the mount's root
            mount.set_options(tree, ["ro"])
            with pytest.raises(OSError, match="Read-only"):
                os.mkdir("more", dir_fd=tree)
        assert [m for m in mount.mounts() if m.source == "name"] == []

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


@pytest.mark.real
class TestSilent:
    """File systems that answer with errors only."""

    @pytest.fixture(params=["xfs", "server"])
    def silent(self, request: pytest.FixtureRequest, real_folder: Path, mounted: Callable[..., int]) -> Iterator[Path]:
        """The mount of an xfs that was shut down, and that of a server that is gone."""
        if request.param == "xfs":
            need("mkfs.xfs")
            shut_down(mounted("xfs"))
            yield real_folder / "xfs"
            return
        place, content = real_folder / "server", real_folder / "content"
        place.mkdir()
        content.write_bytes(bytes(4096))
        server = Disk(place)
        server.start(content)
        server.kill()
        yield place
        server.stop()

    def test_the_kernel_knows_what_it_is(self, silent: Path) -> None:
        with pytest.raises(OSError, match=r"error|not connected"):
            os.stat(silent)
        [entry] = [entry for entry in mount.mounts() if entry.target == str(silent)]
        assert mount.is_mount(silent)
        assert mount.at(silent) == entry
        assert mount.device_at(silent) == entry.number
        assert mount.at(silent.parent) is None

    def test_a_path_to_it_has_no_symlink(self, silent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        link = silent.parent / "link"
        link.symlink_to(silent)
        for number in (nofollow._OPENAT2, 100_000):
            monkeypatch.setattr(nofollow, "_OPENAT2", number)
            os.close(nofollow.open_path(silent))
            with pytest.raises(PreconditionError, match="symlink"):
                nofollow.open_path(link)

    def test_it_is_unmounted(self, silent: Path) -> None:
        again = silent.parent / "again"
        again.mkdir()
        with nofollow.opened(silent) as fd:
            mount.bind(nofollow.by_fd(fd), again)
        assert mount.is_mount(again)
        assert mount.umount(again)
        assert not mount.is_mount(again)

    def test_options_of_a_file_system(self, mounted: Callable[..., int], real_folder: Path) -> None:
        root = mounted("ext4", "errors=remount-ro")
        shown = mount.filesystem_options(real_folder / "ext4")
        if not shown:
            pytest.skip("Linux before 6.10")
        assert "errors=remount-ro" in shown
        assert "shutdown" not in shown
        shut_down(root)
        if "shutdown" not in mount.filesystem_options(real_folder / "ext4"):
            pytest.skip("Linux before 6.15")

    def test_what_the_kernel_does_not_unmount_is_detached(self, real_folder: Path) -> None:
        if os.uname().machine != "x86_64":
            pytest.skip("the filter knows the numbers of x86_64")
        mount.mount("none", real_folder, "tmpfs")

        def body() -> bool:
            _reject_umount(errno.EIO)
            return mount.umount(real_folder)

        assert forked(body) == (0, True)
        assert not mount.is_mount(real_folder)


def shut_down(root: int) -> None:
    """As the kernel does after an error; skips where it has no ioctl for it."""
    try:
        fcntl.ioctl(root, 0x8004587D, struct.pack("=I", 2))  # XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN: without the log
    except OSError as failure:
        pytest.skip(f"the kernel cannot shut it down: {failure.strerror}")


def _reject_umount(number: int) -> None:
    """From now on umount2(2) without MNT_DETACH fails in this process, by a filter (seccomp)."""
    steps = [
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 0, 3, 166),  # umount2
        (0x20, 0, 0, 24),  # load its flags
        (0x45, 1, 0, 2),  # MNT_DETACH
        (0x06, 0, 0, 0x00050000 | number),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP
