"""Copies of images in use: of one moment, or rejected."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from tonnage.base.errors import HostError, PreconditionError
from tonnage.host import filesystem, mount
from tonnage.host.descriptor import closing, opened
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.image import consistent_copy, file

pytestmark = pytest.mark.real
MI = 1024**2
RECORD = VolumeRecord("v", 8 * MI, uuid4(), length=16 * MI, sparse=True, fstype="ext4")


def _mounted(folder: Path) -> tuple[Path, Path]:
    image, path = folder / "v.img", folder / "mounted"
    path.mkdir()
    file.make(image, RECORD)
    with closing(file.open_image(image)) as fd:
        file.format_image(fd, image, RECORD)
        file.mount_image(fd, image, RECORD, path, ())
    return image, path


def test_a_mounted_file_system_is_frozen_while_it_is_copied(real_folder: Path) -> None:
    image, path = _mounted(real_folder)
    (path / "file").write_text("not synced yet")
    fd, _ = consistent_copy.copy(image, RECORD, real_folder / "copy.img")
    os.close(fd)
    assert not list(real_folder.glob(".frozen-*"))
    (path / "file").write_text("it takes writes again")
    mount.umount(path)
    with closing(file.open_image(real_folder / "copy.img")) as fd:
        file.mount_image(fd, real_folder / "copy.img", RECORD, path, ())
    assert (path / "file").read_text() == "not synced yet"
    mount.umount(path)


def test_raw_block_in_use_is_not_copied_byte_by_byte(real_folder: Path) -> None:
    image = real_folder / "v.img"
    record = VolumeRecord("v", 8 * MI, uuid4(), length=8 * MI, sparse=True, block=True)
    file.make(image, record)
    with closing(file.open_image(image)), pytest.raises(PreconditionError, match="stop its pod first"):
        consistent_copy.copy(image, record, real_folder / "copy.img", share=False)
    assert not (real_folder / "copy.img").exists()
    with pytest.raises(HostError, match="content is lost"):
        consistent_copy.copy(real_folder / "none.img", record, real_folder / "copy.img")


def test_a_mark_stays_while_the_mount_is_in_another_namespace(real_folder: Path) -> None:
    _, path = _mounted(real_folder)
    mark = real_folder / ".frozen-v"
    mark.touch()
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; read _"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as elsewhere:
        assert elsewhere.stdout is not None
        elsewhere.stdout.readline()
        with opened(path) as at:
            filesystem.freeze(at)
        mount.umount(path)
        consistent_copy.thaw_all(real_folder, {"v": RECORD}, ".img")
        assert mark.exists()
        with opened(f"/proc/{elsewhere.pid}/root{path}") as at:
            assert filesystem.thaw(at)
        elsewhere.communicate(b"\n")
    consistent_copy.thaw_all(real_folder, {"v": RECORD}, ".img")
    assert not mark.exists()


def test_what_a_kill_left_frozen_is_thawed_at_the_start(real_folder: Path) -> None:
    _, path = _mounted(real_folder)
    (real_folder / ".frozen-v").touch()
    (real_folder / ".frozen-gone").touch()
    consistent_copy.thaw_all(real_folder, {"v": RECORD}, ".img")
    assert not list(real_folder.glob(".frozen-*"))
    (path / "file").write_text("it takes writes")


def test_the_kernel_hurries_only_while_it_freezes(real_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is of the whole machine: this test has a file of its own for it."""
    setting, freeze = real_folder / "rcu_expedited", filesystem.freeze
    seen: list[str] = []

    def watched(fd: int) -> None:
        seen.append(setting.read_text())
        freeze(fd)

    monkeypatch.setattr(filesystem, "_EXPEDITED", setting)
    monkeypatch.setattr(filesystem, "freeze", watched)
    image, path = _mounted(real_folder)
    for number, before in enumerate(("0", "1")):  # an administrator may have turned it on
        setting.write_text(before)
        os.close(consistent_copy.copy(image, RECORD, real_folder / f"{number}.img")[0])
        assert (seen.pop(), setting.read_text()) == ("1", before)
    setting.unlink()
    setting.mkdir()  # it cannot be read or written
    monkeypatch.setattr(filesystem, "freeze", freeze)
    os.close(consistent_copy.copy(image, RECORD, real_folder / "2.img")[0])
    mount.umount(path)


def test_what_a_kill_left_hurried_is_undone_at_the_start(real_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = real_folder / "rcu_expedited"
    monkeypatch.setattr(filesystem, "_EXPEDITED", setting)
    found: tuple[dict[str, VolumeRecord], ...] = ({}, {"v": RECORD})
    for records in found:
        setting.write_text("1")
        (real_folder / ".frozen-v").write_text("rcu_expedited\n")
        consistent_copy.thaw_all(real_folder, records, ".img")
        assert setting.read_text() == "0"
    setting.write_text("1")
    (real_folder / ".frozen-v").touch()
    consistent_copy.thaw_all(real_folder, {}, ".img")
    assert setting.read_text() == "1"
