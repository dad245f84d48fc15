"""Classes of image pools: how file systems are made, and volumes that begin with a folder's content."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import BusyError, HostError, InvalidError, OutOfRangeError, PreconditionError
from tonnage.host import filesystem, loop, mount
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.contract import PoolLimits, VolumeOrigin, VolumeRequest, VolumeState
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fs import populate
from tonnage.storage.pools.image.backend import make_backend

pytestmark = pytest.mark.real
MI = 1024**2
GI = 1024**3


@pytest.fixture
async def pool(real_folder: Path) -> AsyncIterator[Pool]:
    """An image pool of sparse files."""
    made = Pool("p", make_backend(real_folder / "pool", PoolLimits(8 * GI, float("inf"), sparse=True), disks=Disks()))
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def seeds(real_folder: Path) -> Path:
    """A folder whose content volumes get."""
    folder = real_folder / "seeds"
    folder.mkdir()
    (folder / "seed").write_text("first")
    return folder


def _made_with(options: str) -> dict[str, str]:
    return {"mkfsOptions": options}


async def _inodes(pool: Pool, name: str, staging: Path) -> int:
    await pool.stage(name, staging)
    stats = await pool.stats(name, staging)
    assert stats.available >= (await pool.get(name)).size
    await pool.unstage(name, staging)
    return stats.inodes


async def test_each_class_has_its_file_systems(pool: Pool, real_folder: Path) -> None:
    staging = real_folder / "staging"
    few, many = _made_with("-i 65536 -O ^has_journal"), _made_with("-i 4096")
    for name, parameters in (("a", few), ("b", few), ("c", many), ("d", {})):
        await pool.create(VolumeRequest(name, 256 * MI, parameters=parameters))
    inodes = [await _inodes(pool, name, staging) for name in "abcd"]
    assert inodes[0] == inodes[1] < inodes[3] < inodes[2]
    assert inodes[2] >= 256 * MI // 4096


@pytest.mark.parametrize(
    ("fstype", "options"), [("xfs", "-m reflink=0 -i size=1024"), ("btrfs", "--nodesize=32k --csum xxhash")]
)
async def test_other_file_systems(fstype: str, options: str, pool: Pool, real_folder: Path) -> None:
    need(f"mkfs.{fstype}")
    await pool.create(VolumeRequest("a", 320 * MI, fstype=fstype, parameters=_made_with(options)))
    await _inodes(pool, "a", real_folder / "staging")


async def test_the_smallest_volume_of_a_class(pool: Pool) -> None:
    parameters = _made_with("-N 5000")
    assert (await pool.capacity_for(parameters)).smallest == 5000 * 4096
    assert (await pool.create(VolumeRequest("a", MI, parameters=parameters))).size == 5000 * 4096
    with pytest.raises(OutOfRangeError, match="has at least"):
        await pool.create(VolumeRequest("b", MI, limit=2 * MI, parameters=parameters))


async def test_options_that_are_rejected(pool: Pool) -> None:
    wrong = _made_with("-i 4096 -L mine")
    with pytest.raises(InvalidError, match="'-L' is not for ext4"):
        await pool.create(VolumeRequest("a", 20 * MI, parameters=wrong))
    with pytest.raises(InvalidError, match="'-L' is not for ext4"):
        await pool.capacity_for(wrong)
    with pytest.raises(InvalidError, match="-i 4096: -i takes size"):
        await pool.capacity_for(_made_with("-i 4096"), fstype="xfs")
    with pytest.raises(InvalidError, match="mkfsOptions: a raw block volume has no file system"):
        await pool.create(VolumeRequest("a", 20 * MI, block=True, parameters=_made_with("-i 4096")))
    assert await pool.list() == []


async def test_a_copy_is_made_as_its_source_and_grows_so(pool: Pool, real_folder: Path) -> None:
    many = _made_with("-i 4096")
    await pool.create(VolumeRequest("a", 64 * MI, parameters=many))
    inodes = await _inodes(pool, "a", real_folder / "staging")
    await pool.snapshots.create("s", "a")
    await pool.create(VolumeRequest("same", 64 * MI, parameters=many, source=VolumeOrigin(snapshot="s")))
    await pool.create(VolumeRequest("none", 700 * MI, source=VolumeOrigin(volume="a")))
    with pytest.raises(InvalidError, match="made with '-i 4096' and is copied as it is"):
        await pool.create(
            VolumeRequest("other", 64 * MI, parameters=_made_with("-i 8192"), source=VolumeOrigin(volume="a"))
        )

    assert await _inodes(pool, "same", real_folder / "staging") == inodes
    assert await _inodes(pool, "none", real_folder / "staging") > 5 * inodes
    await pool.growth.expand("same", 900 * MI)
    assert await _inodes(pool, "same", real_folder / "staging") > 5 * inodes


def _filled(folder: Path) -> dict[str, str]:
    return {"source": f"dir://{folder}"}


async def _content(pool: Pool, name: str, staging: Path) -> dict[str, str]:
    await pool.stage(name, staging)
    found = {path.name: path.read_text() for path in staging.iterdir() if path.is_file()}
    await pool.unstage(name, staging)
    return found


async def test_a_source_that_is_gone_when_it_is_needed(pool: Pool, seeds: Path, real_folder: Path) -> None:
    await pool.create(VolumeRequest("a", 20 * MI, parameters=_filled(seeds)))
    seeds.rename(real_folder / "away")
    with pytest.raises(PreconditionError, match="make that folder on the node"):
        await pool.stage("a", real_folder / "staging")
    assert (await pool.get("a")).state is VolumeState.NEW

    (real_folder / "away").rename(seeds)
    (seeds / "huge").write_bytes(os.urandom(21 * MI))
    with pytest.raises(OutOfRangeError):
        await pool.stage("a", real_folder / "staging")
    (seeds / "huge").unlink()
    assert await _content(pool, "a", real_folder / "staging") == {"seed": "first"}
    assert (await pool.get("a")).state is VolumeState.FORMATTED


async def test_killed_while_it_is_filled(
    pool: Pool, seeds: Path, real_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.create(VolumeRequest("a", 20 * MI, parameters=_filled(seeds)))
    copy = populate.fill

    def killed(folder: Path, target: int, size: int) -> None:
        copy(folder, target, size)
        (Path(f"/proc/self/fd/{target}") / "half").write_text("of it")
        raise HostError("killed")

    monkeypatch.setattr(populate, "fill", killed)
    with pytest.raises(HostError, match="killed"):
        await pool.stage("a", real_folder / "staging")
    monkeypatch.undo()
    assert await _content(pool, "a", real_folder / "staging") == {"seed": "first"}


async def test_what_was_filled_and_used_is_neither_formatted_nor_filled_again(
    pool: Pool, seeds: Path, real_folder: Path
) -> None:
    await pool.create(VolumeRequest("a", 20 * MI, parameters=_filled(seeds)))
    before = (real_folder / "pool" / "a.json").read_bytes()
    await pool.stage("a", real_folder / "staging")
    (real_folder / "staging" / "seed").write_text("second")
    await pool.unstage("a", real_folder / "staging")
    await pool.close()
    (real_folder / "pool" / "a.json").write_bytes(before)  # state new
    await pool.open()
    assert await _content(pool, "a", real_folder / "staging") == {"seed": "second"}


async def test_copies_have_their_sources_content(pool: Pool, seeds: Path, real_folder: Path) -> None:
    staging = real_folder / "staging"
    await pool.create(VolumeRequest("a", 20 * MI, parameters=_filled(seeds)))
    await pool.snapshots.create("before", "a")
    await pool.create(VolumeRequest("unused", 20 * MI, source=VolumeOrigin(volume="a")))
    assert await _content(pool, "a", staging) == {"seed": "first"}
    (seeds / "seed").write_text("second")
    await pool.create(VolumeRequest("used", 20 * MI, parameters=_filled(seeds), source=VolumeOrigin(volume="a")))

    assert await _content(pool, "used", staging) == {"seed": "first"}, "a copy's content is its source's"
    assert await _content(pool, "unused", staging) == {"seed": "second"}, "there was nothing yet to copy"
    await pool.create(VolumeRequest("restored", 20 * MI, source=VolumeOrigin(snapshot="before")))
    assert await _content(pool, "restored", staging) == {"seed": "second"}


@pytest.mark.parametrize("fstype", ["xfs", "btrfs"])
async def test_other_file_systems_are_filled(fstype: str, pool: Pool, seeds: Path, real_folder: Path) -> None:
    need(f"mkfs.{fstype}")
    await pool.create(VolumeRequest("a", 320 * MI, fstype=fstype, parameters=_filled(seeds)))
    assert await _content(pool, "a", real_folder / "staging") == {"seed": "first"}


async def test_the_device_of_a_raw_block_volume(pool: Pool, real_folder: Path) -> None:
    await pool.create(VolumeRequest("a", 20 * MI, block=True))
    assert await pool.device("a") is None
    await pool.stage("a", real_folder / "staging")
    node = os.stat(real_folder / "staging" / "device").st_rdev
    number = await pool.device("a")
    await pool.unstage("a", real_folder / "staging")
    assert number == (os.major(node), os.minor(node))
    assert await pool.device("a") is None


async def test_how_many_there_can_be(pool: Pool) -> None:
    assert await pool.volume_limit() == loop.most()


@pytest.fixture
def namespace() -> Iterator[Callable[[], None]]:
    """Makes a mount namespace, which has a copy of each mount until the end of the test."""
    with ExitStack() as made:

        def make() -> None:
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; read _"]
            other = made.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert other.stdout is not None
            if not other.stdout.readline():
                pytest.skip("needs mount namespaces")
            made.callback(other.communicate)

        yield make


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
async def test_a_copy_of_a_mount_elsewhere_hinders_no_later_stage(
    fstype: str,
    pool: Pool,
    real_folder: Path,
    namespace: Callable[[], None],
) -> None:
    need(f"mkfs.{fstype}")
    can_grow = fstype != "ext4" or filesystem.may_grow_ext4()
    staging, size = real_folder / "staging", 320 * MI
    await pool.create(VolumeRequest("a", size, fstype=fstype))
    await pool.stage("a", staging)
    (staging / "file").write_text("content")
    namespace()
    await pool.unstage("a", staging)
    if can_grow:
        await pool.growth.expand("a", 2 * size)
    with pytest.raises(BusyError):
        await pool.stage("a", staging, options=("ro",))
    await pool.stage("a", staging)
    with pytest.raises(BusyError):  # as without the copy
        await pool.stage("a", real_folder / "second")
    assert (staging / "file").read_text() == "content"
    assert len(loop.of_file(real_folder / "pool" / "a.img")) == 1, "two devices would write to one image"
    assert (await pool.stats("a", staging)).total > (size * 3 // 2 if can_grow else size * 3 // 4)
    await pool.unstage("a", staging)


async def test_a_silent_file_system_is_not_staged_while_a_copy_of_its_mount_is_elsewhere(
    pool: Pool, real_folder: Path, namespace: Callable[[], None]
) -> None:
    """The kernel shows the same one again, which answers no pod."""
    need("mkfs.xfs")
    staging = real_folder / "staging"
    await pool.create(VolumeRequest("a", 320 * MI, fstype="xfs"))
    await pool.stage("a", staging)
    with opened(staging) as fd:
        try:
            fcntl.ioctl(fd, 0x8004587D, struct.pack("=I", 2))  # XFS_IOC_GOINGDOWN, without the log
        except OSError as failure:
            pytest.skip(f"the kernel cannot shut it down: {failure.strerror}")
    namespace()
    await pool.unstage("a", staging)
    with pytest.raises(PreconditionError, match=r"volume a: cannot be staged: its file system answers .*; look at"):
        await pool.stage("a", staging)
    assert not mount.is_mount(staging)


async def test_a_volume_that_was_unmounted_since_is_well(pool: Pool, real_folder: Path) -> None:
    staging = real_folder / "staging"
    await pool.create(VolumeRequest("a", 32 * MI))
    assert await pool.places() == {}
    await pool.stage("a", staging)
    places = await pool.places()
    assert places == {"a": staging}
    await pool.unstage("a", staging)
    assert (await pool.condition("a", staging)).abnormal
    assert not (await pool.condition_in(places, "a")).abnormal
