"""Contexts of containers: stored, read again, removed."""

from __future__ import annotations

from pathlib import Path

from tonnage_box.kubelet.containers import context, rootfs


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    who = rootfs.User(1, 2, (3, 4))
    made = context.of(who, {"A": "b\n\udcff"}, working_dir="/w", capabilities=1, unconfined=True)
    context.save(str(tmp_path), made)
    assert (tmp_path / "context.json").stat().st_mode & 0o777 == 0o600
    assert context.load(str(tmp_path)) == made
    assert made.environment == {"A": b"b\n\xff"}
    context.remove(str(tmp_path))
    context.remove(str(tmp_path))
    assert context.load(str(tmp_path)) is None


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "context.json").write_bytes(b"{")
    assert context.load(str(tmp_path)) is None
