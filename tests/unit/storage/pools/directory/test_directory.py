"""A pool's directory: taken, rejected, and its records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from tonnage.base.errors import ExhaustedError, NotFoundError, UnavailableError
from tonnage.host import fstab, mount
from tonnage.storage.pools.base.record import VolumeRecord, seal
from tonnage.storage.pools.directory.directory import MARKER, NOTE, Directory, Marker, is_unmounted

RECORD = VolumeRecord("v", 4096, uuid4(), fstype="ext4", owner={"claim": "default/x"}, created=12.5)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    made = Directory(tmp_path / "deep" / "pool", "image")
    made.open()
    yield made
    made.close()


def test_made_private_with_a_marker(directory: Directory) -> None:
    assert directory.path.stat().st_mode & 0o777 == 0o700
    marker = msgspec.json.decode((directory.path / MARKER).read_bytes())
    assert (marker["kind"], marker["version"]) == ("image", 2)


def test_a_disk_that_is_not_mounted_is_no_empty_pool(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory.close()
    table = tmp_path / "fstab"
    table.write_text(f"# disks\n/dev/sda1 / ext4 defaults 0 1\nUUID=1-2 {directory.path.parent} xfs nofail 0 0\n")
    monkeypatch.setattr(fstab, "FSTAB", table)
    with pytest.raises(UnavailableError, match=f"its disk is not mounted: mount {directory.path.parent}"):
        directory.open()
    assert is_unmounted(directory.path)
    table.write_text("")
    directory.open()
    directory.close()
    (directory.path / NOTE).touch()
    with pytest.raises(UnavailableError, match=f"its disk is not mounted: mount it, or remove {directory.path / NOTE}"):
        directory.open()


def test_opened_again_keeps_its_id(directory: Directory) -> None:
    before = (directory.path / MARKER).read_bytes()
    directory.close()
    directory.open()
    assert (directory.path / MARKER).read_bytes() == before


def test_a_pool_with_volumes_keeps_its_name(tmp_path: Path) -> None:
    directory = Directory(tmp_path, "image")
    for name in ("fast", "slow", "", "slow"):  # an empty one may be called as one likes
        directory.open(name)
        directory.close()
    size = (tmp_path / MARKER).stat().st_size
    directory.open("slow")
    directory.write(RECORD)
    directory.close()
    with pytest.raises(UnavailableError, match=r"volumes of a pool named 'slow'.* call it name=slow instead of fast"):
        directory.open("fast")
    directory.open()  # for those who look into it whatever its name
    directory.remove(RECORD.name)
    directory.close()
    directory.open("fast")
    directory.close()
    assert (tmp_path / MARKER).stat().st_size == size


def test_killed_before_the_marker_was_written(tmp_path: Path) -> None:
    (tmp_path / MARKER).touch()
    (tmp_path / ".new-v.json").write_text("{")
    directory = Directory(tmp_path, "image")
    directory.open()
    directory.clean()
    assert os.listdir(tmp_path) == [MARKER]
    directory.close()


class TestRejected:
    def _rejected(self, path: Path, words: str, kind: str = "image") -> None:
        directory = Directory(path, kind)
        with pytest.raises(UnavailableError, match=words):
            directory.open()
        with pytest.raises(UnavailableError, match="not open"):
            _ = directory.at

    def test_in_use(self, directory: Directory) -> None:
        self._rejected(directory.path, "in use by another process")

    def test_symlink(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        self._rejected(tmp_path / "link", "is a symlink")
        assert os.listdir(tmp_path / "real") == []

    def test_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        self._rejected(tmp_path / "file", "is not a directory")
        self._rejected(tmp_path / "file" / "below", "Not a directory")

    def test_foreign(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("precious")
        self._rejected(tmp_path, r"not tonnage's \('thesis.tex'\)")
        assert os.listdir(tmp_path) == ["thesis.tex"]

    def test_other_kind(self, directory: Directory) -> None:
        directory.close()
        self._rejected(directory.path, "belongs to a pool of kind image, not btrfs", kind="btrfs")

    def test_newer(self, tmp_path: Path) -> None:
        (tmp_path / MARKER).write_bytes(seal(Marker("image", uuid4(), version=9)))
        self._rejected(tmp_path, r"newer tonnage \(format 9\)")

    def test_damaged(self, tmp_path: Path) -> None:
        (tmp_path / MARKER).write_text("{oops")
        self._rejected(tmp_path, "marker .tonnage-pool is damaged")

    def test_read_only(self) -> None:
        self._rejected(Path("/proc/tonnage"), "pool directory /proc/tonnage: ")

    def test_not_allowed(self) -> None:
        user = os.geteuid()
        if user == 0:  # root may write everywhere: look as nobody
            os.seteuid(65534)
        try:
            self._rejected(Path("/tonnage-pool"), "run as root")
        finally:
            os.seteuid(user)


class TestRecords:
    def test_written_and_read(self, directory: Directory) -> None:
        directory.write(RECORD)
        assert directory.read("v") == RECORD
        assert directory.records() == ({RECORD.name: RECORD}, {})
        volume = directory.read("v").volume()
        assert (volume.name, volume.size, volume.state.value, volume.created) == ("v", 4096, "new", 12.5)

    def test_replaced(self, directory: Directory) -> None:
        directory.write(RECORD)
        directory.write(msgspec.structs.replace(RECORD, state="formatted"))
        assert directory.read("v").state == "formatted"
        assert sorted(os.listdir(directory.path)) == [MARKER, "v.json"]

    def test_removed_twice(self, directory: Directory) -> None:
        directory.write(RECORD)
        directory.remove("v")
        directory.remove("v")
        with pytest.raises(NotFoundError):
            directory.read("v")

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"{", id="cut off"),
            pytest.param(b'{"name": "v", "size": 1}', id="a key is missing"),
            pytest.param(seal(msgspec.structs.replace(RECORD, name="w")), id="of another volume"),
            pytest.param(seal(msgspec.structs.replace(RECORD, state="half")), id="unknown state"),
        ],
    )
    def test_damaged_is_named_and_left_alone(
        self, directory: Directory, text: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        (directory.path / "v.json").write_bytes(text)
        whole, damaged = directory.records()
        assert (whole, list(damaged)) == ({}, ["v"])
        assert "record is damaged" in caplog.text
        assert (directory.path / "v.json").exists()

    def test_newer_format(self, directory: Directory) -> None:
        directory.write(msgspec.structs.replace(RECORD, version=9))
        with pytest.raises(ValueError, match="newer"):
            directory.read("v")
        whole, damaged = directory.records()
        assert (whole, list(damaged)) == ({}, ["v"])

    @pytest.mark.real
    def test_full_disk(self, directory: Directory, real_folder: Path) -> None:
        place = real_folder / "small"
        place.mkdir()
        mount.mount("none", place, "tmpfs", ["size=16k"])
        full = Directory(place, "image")
        full.open()
        (place / "filler").write_bytes(bytes(12288))
        with pytest.raises(ExhaustedError, match="No space left"):
            full.write(RECORD)
        assert not [entry for entry in os.listdir(place) if entry.startswith(".new-")]
        full.close()
        mount.umount(place)
