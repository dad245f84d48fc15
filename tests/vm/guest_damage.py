"""Pools of guests that start with a damaged record, or with one of an earlier moment: no byte of a volume is lost. Run
by test_uml.py (LVM, quotas) and test_qemu.py (persistent memory). DAMAGE: how many changes of a record, for each kind."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash.damage.damage import MI, NAME, File, Life, Record, sample
from tests.vm.lvm_bench import DISKS, retag, tags

from tonnage.host import lvm, mount, ndctl
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.pmem.region import RECORDS

COUNT = int(os.environ.get("DAMAGE", "4"))
KINDS = os.environ.get("DAMAGE_KINDS", "").split(",")
_TAG = re.compile(r"[A-Za-z0-9_+.\-/=!:&#]{1,1024}")


class Tags(Record):
    """The tags of a logical volume."""

    def read(self) -> bytes:
        return "\n".join(sorted(tags(NAME))).encode()

    def write(self, text: bytes) -> bool:
        wanted = text.decode("latin-1").split("\n")
        is_ours = any(tag.startswith("tonnage.") for tag in wanted)
        if not is_ours or not all(map(_TAG.fullmatch, wanted)):  # LVM would not have it, or it would be nobody's
            return False
        retag(NAME, wanted)
        return sorted(tags(NAME)) == sorted(set(wanted))


class InRegion(Record):
    """A file in the records of region0."""

    @contextmanager
    def _file(self) -> Iterator[File]:
        [home] = [found for found in ndctl.namespaces("region0") if found.label == RECORDS]
        with tempfile.TemporaryDirectory(dir="/run") as folder:
            mount.mount(home.device, folder, "ext4", ())
            try:
                yield File(Path(folder, f"{NAME}.json"))
            finally:
                mount.umount(folder)

    def read(self) -> bytes:
        with self._file() as file:
            return file.read()

    def write(self, text: bytes) -> bool:
        with self._file() as file:
            return file.write(text)


class InGuest(Life):
    """A life of a kind. pool: its description."""

    def __init__(self, folder: Path, record: Record, request: VolumeRequest, pool: str) -> None:
        super().__init__(folder, record, request)
        self._pool = pool

    def make(self) -> Pool:
        return make(parse(self._pool), disks=Disks())


@pytest.fixture(params=KINDS)
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InGuest]:
    """A life of each kind."""
    kind = request.param
    plain, block = VolumeRequest(NAME, 16 * MI), VolumeRequest(NAME, 16 * MI, block=True)
    if kind.startswith("lvm"):
        lvm.lvm("vgcreate", "vg0", *DISKS)
        thin = ",thin=pool,thinsize=512Mi" if "thin" in kind else ""
        yield InGuest(tmp_path, Tags(), block if "block" in kind else plain, f"lvm:vg0,name=p{thin}")
        lvm.lvm("vgremove", "--yes", "--force", "vg0")
    elif kind.startswith("quota"):
        disk, is_xfs = tmp_path / "disk", "xfs" in kind
        disk.mkdir()
        run(
            ["mkfs.xfs", "-q", "-f", DISKS[0]] if is_xfs else ["mkfs.ext4", "-q", "-F", "-O", "quota,project", DISKS[0]]
        )
        mount.mount(DISKS[0], disk, "xfs" if is_xfs else "ext4", ["prjquota"])
        wanted = VolumeRequest(NAME, 16 * MI, parameters={"allowUnenforced": "true"})
        yield InGuest(tmp_path, File(disk / "pool" / f"{NAME}.json"), wanted, f"quota:{disk / 'pool'},name=p")
        mount.umount(disk, lazy=True)
    else:
        yield InGuest(tmp_path, InRegion(), block if "block" in kind else plain, "pmem:region0,name=p")


async def test_no_byte_is_lost(life: InGuest) -> None:
    await life.live()
    good = life.record.read()
    for number, moment in enumerate(life.moments):
        await life.survives(moment, f"that of moment {number}", must_be_damaged=False)
    tried = 0
    for what, text in sample(good, COUNT * 20):
        tried += await life.survives(text, what)
        if tried == COUNT:
            break
    assert tried == COUNT
    pool = life.make()
    await pool.open()
    await pool.delete(NAME)
    await pool.close()
