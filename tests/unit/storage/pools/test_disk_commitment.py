"""What the pools on one disk may reserve together."""

from __future__ import annotations

from pathlib import Path

from tonnage.storage.pools.config import parse
from tonnage.storage.pools.disk_commitment import DiskCommitment, commitments

GI = 1024**3


def test_pools_on_one_disk(tmp_path: Path) -> None:
    configs = [parse(f"image:{tmp_path / name},name={name},size=1Gi") for name in ("a", "b")]
    [disk] = commitments([*configs, parse("fake,size=1Ti")])
    assert (disk.pools, disk.reserved) == (("a", "b"), 2 * GI)
    assert disk.free > 0


def test_what_is_too_much_is_told() -> None:
    assert DiskCommitment(Path("/"), ("a",), 2 * GI, 2 * GI).fits
    over = DiskCommitment(Path("/"), ("a", "b"), 3 * GI, 2 * GI)
    assert not over.fits
    assert str(over) == "a, b: pools of 3Gi on a disk with 2Gi free, 1Gi more than it has"
    same = DiskCommitment(Path("/"), ("a", "a", "b"), 3 * GI, 5 * GI + 4096)
    assert str(same) == "2 x a, b: pools of 3Gi on a disk with 5Gi free"
