"""The LVM pool on a real device-mapper. Run by test_uml.py inside user-mode Linux, on two disks of 2Gi."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.vm.lvm_bench import (
    CONF,
    EXTENT,
    MI,
    THIN,
    Bench,
    bench_in,
    device,
    erased,
    flood,
    foreign,
    group_free,
    no_tool_runs,
    peek,
    poke,
    report,
    retag,
    settled,
    soil,
    tags,
    unmount_all,
)

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    HostError,
    InvalidError,
    OutOfRangeError,
    PreconditionError,
    TonnageError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.host import dm, lvm, mount
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest, VolumeState
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.fs.formats import EXT4


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_in(tmp_path) as made:
        yield made


async def test_the_record_is_in_tags_that_people_can_read(bench: Bench) -> None:
    pool = await bench.pool()
    owner = {"claim": "default/x y+z", "cluster": "…", "empty": ""}
    made = await pool.create(VolumeRequest("pvc-1", 20 * MI, owner=owner, parameters={"erase": "none"}))
    tags = report("lv_tags")["pvc-1"]["lv_tags"].split(",")
    assert {"tonnage.v=2", "tonnage.state=new", f"tonnage.size={20 * MI}", "tonnage.p.erase=none"} <= set(tags)
    assert await (await bench.pool()).get("pvc-1") == made
    await bench.pools[-1].stage("pvc-1", bench.folder / "s")
    assert (await (await bench.pool()).get("pvc-1")).state is VolumeState.FORMATTED
    tags = report("lv_tags")["pvc-1"]["lv_tags"].split(",")
    assert [tag for tag in tags if "state" in tag] == ["tonnage.state=formatted"]


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
async def test_each_file_system_keeps_its_content(bench: Bench, fstype: str) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    volume = await pool.create(VolumeRequest("a", 320 * MI, fstype=fstype))
    await pool.stage("a", staging)
    (staging / "file").write_text("content")
    stats = await pool.stats("a", staging)
    assert stats.available >= volume.size
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    await pool.unstage("a", staging)
    lvm.lvm("lvchange", "--activate", "n", "vg0/a")  # as after a reboot without auto-activation
    pool = await bench.pool()
    await pool.stage("a", staging)
    assert (staging / "file").read_text() == "content"
    await pool.unstage("a", staging)
    await pool.delete("a")
    assert report() == {}


async def test_raw_block_shows_nothing_of_former_owners(bench: Bench) -> None:
    soil()
    pool, staging, target = await bench.pool(), bench.folder / "s", bench.folder / "t"
    volume = await pool.create(VolumeRequest("a", 5 * MI, block=True))
    assert volume.size == 2 * EXTENT
    with pytest.raises(OutOfRangeError, match="at least 4Mi"):
        await pool.create(VolumeRequest("b", MI, limit=2 * MI, block=True))
    for _ in range(2):
        await pool.stage("a", staging)
    for _ in range(2):
        await pool.publish("a", staging, target)
    assert stat.S_ISBLK(os.stat(target).st_mode)
    assert peek(target, volume.size + 1) == bytes(volume.size)
    poke(target, b"content")
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    assert (await pool.stats("a", target)).total == volume.size
    await pool.unpublish("a", target)
    await pool.unstage("a", staging)
    await pool.stage("a", staging)
    assert (staging / "device").read_bytes().startswith(b"content")
    await pool.unstage("a", staging)
    await pool.delete("a")
    assert report() == {}


async def test_an_open_device_is_in_use(bench: Bench) -> None:
    pool = await bench.pool()
    await pool.create(VolumeRequest("a", 5 * MI, block=True))
    opened = os.open(device("a"), os.O_RDONLY)
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    os.close(opened)
    await pool.delete("a")


async def test_a_foreign_signature_is_never_formatted_over(bench: Bench) -> None:
    pool = await bench.pool()
    await pool.create(VolumeRequest("a", 20 * MI))
    foreign("a")
    with pytest.raises(PreconditionError, match="holds ext4 that we did not make"):
        await pool.stage("a", bench.folder / "s")


async def test_what_a_kill_in_create_left_is_removed(bench: Bench) -> None:
    pool = await bench.pool()
    await pool.create(VolumeRequest("a", 20 * MI))
    foreign("a")  # stands for what a former owner had there
    half = f"c+{dict(tag.split('=') for tag in tags('a'))['tonnage.uuid'].replace('-', '')}"
    lvm.lvm("lvrename", "vg0", "a", half)
    pool = await bench.pool()
    assert report() == {}
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", bench.folder / "s")
    assert mount.is_mount(bench.folder / "s")


async def test_tags_of_a_volume_are_never_taken_for_half_made(bench: Bench) -> None:
    """By its name a logical volume is a volume, whatever its tags say."""
    pool = await bench.pool()
    await pool.create(VolumeRequest("a", 20 * MI))
    lvm.lvm("lvchange", "--addtag", "tonnage.kind=copy", "vg0/a")
    pool = await bench.pool()
    assert list(await pool.damaged()) == ["a"]
    assert set(report()) == {"a"}


async def test_an_interrupted_mkfs_is_made_anew_and_a_finished_one_never(bench: Bench) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 20 * MI))
    before = tags("a")
    uuid = dict(tag.split("=") for tag in before)["tonnage.uuid"]
    run(["mkfs.ext4", "-q", "-U", uuid, device("a")])
    await pool.stage("a", staging)
    assert (await pool.stats("a", staging)).available >= 20 * MI, "made anew: mkfs by itself reserves more"
    (staging / "file").write_text("content")
    await pool.unstage("a", staging)
    retag("a", before)
    pool = await bench.pool()
    await pool.stage("a", staging)
    assert (staging / "file").read_text() == "content"
    await pool.unstage("a", staging)
    poke(device("a"), bytes(8192))
    with pytest.raises(HostError, match="cannot mount"):
        await pool.stage("a", staging)
    assert peek(device("a"), 8192) == bytes(8192)


async def test_layouts_and_what_they_cost(bench: Bench) -> None:
    pool = await bench.pool()
    empty = group_free()
    striped, raid1 = {"type": "striped", "stripes": "2"}, {"type": "raid1", "mirrors": "1"}
    length = EXT4.length(100 * MI)
    for name, parameters in (("s", striped), ("m", raid1), ("l", {"type": "linear"})):
        await pool.create(VolumeRequest(name, 100 * MI, parameters=parameters))
    found = report("lv_layout", "lv_size")
    assert [found[name]["lv_layout"] for name in "sml"] == ["striped", "raid,raid1", "linear"]
    assert all(int(found[name]["lv_size"]) >= length for name in "sml")
    told = (await pool.capacity(block=True)).free
    assert told == group_free() < empty - 4 * length
    room = await pool.capacity_for(raid1, block=True)
    assert room.largest <= told // 2
    await pool.create(VolumeRequest("all", room.largest, block=True, parameters=raid1))
    with pytest.raises(OutOfRangeError, match="can never fit"):
        await pool.create(VolumeRequest("x", 100 * MI, parameters={"type": "striped", "stripes": "3"}))
    await pool.stage("m", bench.folder / "s")
    assert mount.is_mount(bench.folder / "s")
    await pool.unstage("m", bench.folder / "s")
    for name in ("s", "m", "l", "all"):
        await pool.delete(name)
    assert (await pool.capacity(block=True)).free == group_free() == empty


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"cowSize": "1"}, InvalidError, "cowSize"),
        ({"thin": "true"}, UnsupportedError, "no thin pool"),
        ({"type": "raid6"}, InvalidError, "type='raid6'"),
        ({"type": "raid1", "stripes": "2"}, InvalidError, "stripes"),
        ({"erase": "burn"}, InvalidError, "erase: 'burn'"),
    ],
)
async def test_parameters_rejected_by_name(
    bench: Bench, parameters: dict[str, str], error: type[TonnageError], words: str
) -> None:
    pool = await bench.pool()
    with pytest.raises(error, match=words):
        await pool.create(VolumeRequest("a", 20 * MI, parameters=parameters))
    assert report() == {}


async def test_a_class_says_how_file_systems_are_made_filled_and_what_is_left_to_others(bench: Bench) -> None:
    pool, staging, folder = await bench.pool(), bench.folder / "s", bench.folder / "data"
    folder.mkdir()
    (folder / "model").write_text("content")
    free = (await pool.capacity()).free
    parameters = {"mkfsOptions": "-N 128", "source": f"dir://{folder}", "reserve": "1Gi"}
    left = (await pool.capacity_for({"reserve": "1Gi"})).free
    assert free - 1100 * MI < left <= free - 1024 * MI
    await pool.create(VolumeRequest("a", 20 * MI, parameters=parameters))
    await pool.create(VolumeRequest("n", 20 * MI, source=VolumeOrigin(volume="a")))
    pool = await bench.pool()
    for name in ("a", "n"):
        await pool.stage(name, staging)
        assert (staging / "model").read_text() == "content"
        assert os.statvfs(staging).f_files == 128
        assert (await pool.stats(name, staging)).available >= 19 * MI
        await pool.unstage(name, staging)
    with pytest.raises(InvalidError, match="mkfsOptions"):
        await pool.create(VolumeRequest("b", 20 * MI, parameters={"mkfsOptions": "-L name"}))
    with pytest.raises(PreconditionError, match="make that folder"):
        await pool.create(VolumeRequest("b", 20 * MI, parameters={"source": "dir:///nowhere/at/all"}))
    largest = (await pool.capacity_for({"reserve": "1Gi"})).largest
    with pytest.raises(ExhaustedError, match="leaves to others"):
        await pool.create(VolumeRequest("b", largest + MI, parameters={"reserve": "1Gi"}))
    assert set(report()) == {"a", "n"}


async def test_the_account_agrees_with_lvm_after_anything(bench: Bench) -> None:
    pool, choose = await bench.pool(), random.Random(4)
    parameters = [{}, {"type": "striped", "stripes": "2"}, {"type": "raid1"}]
    for _ in range(3):
        names = choose.sample("abcdef", 4)
        calls = [
            pool.delete(name)
            if choose.random() < 0.4
            else pool.create(VolumeRequest(name, choose.randint(1, 40) * MI, parameters=choose.choice(parameters)))
            for name in names
        ]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert answer is None or not isinstance(answer, BaseException) or isinstance(answer, AlreadyExistsError)
        assert (await pool.capacity(block=True)).free == group_free()
        assert {volume.name for volume in await pool.list()} == set(report())


async def test_reading_and_counting_start_no_program(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = await bench.pool()
    started: list[str] = []
    real = lvm.lvm

    def counted(*arguments: str, config: str = "", keep: int = 65536) -> str:
        started.append(arguments[0])
        return real(*arguments, config=config, keep=keep)

    monkeypatch.setattr(lvm, "lvm", counted)
    await pool.create(VolumeRequest("a", 20 * MI))
    for _ in range(5):
        await pool.capacity()
        await pool.list()
    await pool.delete("a")
    await pool.capacity()
    assert started == ["lvcreate", "lvrename", "lvremove"]


async def test_many_at_once_keep_to_the_limit_and_none_is_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, running, most, real = await bench.pool(), set[object](), 0, run

    def watched(*arguments: Any, **options: Any) -> str:
        nonlocal most
        call = object()
        running.add(call)
        most = max(most, len(running))
        try:
            return real(*arguments, **options)
        finally:
            running.discard(call)

    monkeypatch.setattr("tonnage.host.lvm.run", watched)
    await asyncio.gather(*(pool.create(VolumeRequest(f"v{number}", MI)) for number in range(32)))
    assert 1 <= most <= lvm.AT_ONCE
    assert set(report()) == {f"v{number}" for number in range(32)}
    await asyncio.gather(*(pool.delete(f"v{number}") for number in range(32)))
    assert report() == {}


async def test_volumes_of_others_are_counted_and_left_alone(bench: Bench) -> None:
    lvm.lvm("lvcreate", "--yes", "--size", "100m", "--name", "root", "vg0")
    pool = await bench.pool()
    assert await pool.list() == []
    assert (await pool.capacity(block=True)).free == group_free()
    with pytest.raises(AlreadyExistsError, match="not tonnage's"):
        await pool.create(VolumeRequest("root", 20 * MI))
    await pool.delete("root")
    assert set(report()) == {"root"}


async def test_names_that_lvm_does_not_allow(bench: Bench) -> None:
    pool = await bench.pool()
    names = ["snapshot1", "a_tmeta", "x" * 128, "pvc-" + "a-" * 50]
    for name in names:
        await pool.create(VolumeRequest(name, 5 * MI))
    assert [v.name for v in await (await bench.pool()).list()] == sorted(names)
    for name in names:
        await bench.pools[-1].delete(name)
    assert report() == {}


async def test_changes_by_others_are_seen_before_a_rejection(bench: Bench) -> None:
    lvm.lvm("lvcreate", "--yes", "--extents", "100%FREE", "--name", "hog", "vg0")
    pool = await bench.pool()
    with pytest.raises((ExhaustedError, OutOfRangeError)):
        await pool.create(VolumeRequest("a", 20 * MI))
    lvm.lvm("lvremove", "--yes", "vg0/hog")
    await asyncio.sleep(1.1)  # rejections within a second share one look
    await pool.create(VolumeRequest("a", 20 * MI))
    lvm.lvm("lvcreate", "--yes", "--extents", "100%FREE", "--name", "hog", "vg0")
    with pytest.raises(ExhaustedError):  # not known to us: lvcreate itself says so
        await pool.create(VolumeRequest("b", 20 * MI))
    assert (await pool.capacity(block=True)).free == 0
    assert [v.name for v in await pool.list()] == ["a"]


async def test_one_pool_for_a_group(bench: Bench) -> None:
    await bench.pool()
    with pytest.raises(UnavailableError, match="in use by another pool"):
        await make(parse("lvm:vg0,name=other")).open()
    with pytest.raises(UnavailableError, match="no volume group nowhere"):
        await make(parse("lvm:nowhere")).open()


async def test_a_group_that_lost_a_disk(bench: Bench) -> None:
    pool = await bench.pool()
    await pool.create(VolumeRequest("a", 20 * MI))
    CONF.write_text(CONF.read_text().replace("devices {", 'devices { filter=["r|/dev/ubdb|"] '))
    pool = await bench.pool()
    assert [v.name for v in await pool.list()] == ["a"]
    assert (await pool.capacity()).largest == 0
    with pytest.raises((ExhaustedError, OutOfRangeError)):
        await pool.create(VolumeRequest("b", 20 * MI))
    CONF.write_text(CONF.read_text().replace('"r|/dev/ubdb|"', '"r|.*|"'))
    with pytest.raises(UnavailableError, match="no volume group vg0"):
        await bench.pool()


async def test_damaged_tags_stop_only_their_volume(bench: Bench) -> None:
    pool = await bench.pool()
    for name in ("a", "b"):
        await pool.create(VolumeRequest(name, 20 * MI))
    lvm.lvm("lvchange", "--deltag", f"tonnage.size={20 * MI}", "vg0/a")
    pool = await bench.pool()
    assert [v.name for v in await pool.list()] == ["b"]
    for call in (pool.get("a"), pool.delete("a"), pool.create(VolumeRequest("a", 20 * MI))):
        with pytest.raises(HostError, match=r"damaged \(its checksum is wrong\)"):
            await call
    assert (await pool.capacity()).used > 40 * MI
    assert set(report()) == {"a", "b"}


async def test_erase_zero_leaves_nothing_and_discard_works(bench: Bench) -> None:
    pool = await bench.pool()
    await pool.create(VolumeRequest("a", 4 * MI, block=True, parameters={"erase": "zero"}))
    await pool.create(VolumeRequest("b", 4 * MI, block=True, parameters={"erase": "discard"}))
    await pool.stage("a", bench.folder / "s")
    poke(bench.folder / "s" / "device", b"secret!!" * 1000)
    where = report("devices")["a"]["devices"]
    await pool.unstage("a", bench.folder / "s")
    await pool.delete("a")
    await pool.delete("b")
    await erased(pool)
    assert report() == {}
    disk, _, first = where.partition("(")
    assert peek(disk, 8000, at=MI + int(first.rstrip(")")) * EXTENT) == bytes(8000)  # data begins at 1Mi


async def test_thin_volumes_are_promised_by_ratio(bench: Bench) -> None:
    pool = await bench.pool(f"{THIN},overcommit=2")
    assert report("lv_when_full", "zero")["pool"] == {"lv_name": "pool", "lv_when_full": "error", "zero": "zero"}
    assert (await pool.capacity(block=True)).largest == 1024 * MI
    await pool.create(VolumeRequest("a", 1000 * MI, block=True))
    assert report("lv_layout")["a"]["lv_layout"] == "thin,sparse"
    assert (await pool.capacity(block=True)).largest == 24 * MI
    with pytest.raises(ExhaustedError):
        await pool.create(VolumeRequest("b", 100 * MI, block=True))
    thick = await pool.create(VolumeRequest("c", 100 * MI, parameters={"thin": "false"}))
    assert report("lv_layout")[thick.name]["lv_layout"] == "linear"
    with pytest.raises(InvalidError, match="erase='zero'"):
        await pool.create(VolumeRequest("d", MI, parameters={"erase": "zero"}))
    await pool.delete("a")
    assert (await pool.capacity(block=True)).largest == 1024 * MI
    assert await (await bench.pool(f"{THIN},overcommit=2")).get("c") == thick


async def test_a_full_thin_pool_fails_writes_and_takes_nothing_more(bench: Bench) -> None:
    pool, staging = await bench.pool(f"{THIN},overcommit=4"), bench.folder / "s"
    await pool.create(VolumeRequest("a", 800 * MI, block=True))
    await pool.stage("a", staging)
    with pytest.raises(OSError, match=r"No space|Input/output"):
        flood(staging / "device", 800 * MI)  # a writer is never left waiting
    found = dm.thin_pool("vg0-pool-tpool")
    assert found is not None
    assert found.data > 0.95
    assert (await pool.capacity(block=True)).largest == 0
    with pytest.raises((ExhaustedError, OutOfRangeError)):
        await pool.create(VolumeRequest("b", 20 * MI))
    await pool.unstage("a", staging)
    await pool.delete("a")
    assert (await pool.capacity(block=True)).largest == 2048 * MI


async def test_thin_pools_that_are_there_already(bench: Bench) -> None:
    with pytest.raises(UnavailableError, match="no thin pool pool: make it"):
        await bench.pool(",thin=pool")
    create = ["lvcreate", "--yes", "--type", "thin-pool", "--size", "128m", "--name", "pool", "vg0"]
    lvm.lvm(*create, "-Zn", config="activation/error_when_full=0")
    with pytest.raises(UnavailableError, match="would show old data"):
        await bench.pool(",thin=pool")
    lvm.lvm("lvchange", "-Zy", "vg0/pool")
    await bench.pool(",thin=pool")
    assert report("lv_when_full")["pool"]["lv_when_full"] == "error"
    lvm.lvm("lvcreate", "--yes", "--size", "8m", "--name", "plain", "vg0")
    with pytest.raises(UnavailableError, match="is linear, not a thin pool"):
        await bench.pool(",thin=plain")


_WRITER = """
import asyncio, sys
from pathlib import Path
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.config import make, parse
async def main():
    pool = make(parse("lvm:vg0,name=p"))
    await pool.open()
    print("ready", flush=True)
    for number in range(1000):
        name, staging = f"v{number % 3}", Path(sys.argv[1]) / f"s{number % 3}"
        await pool.create(VolumeRequest(name, 20 * 2**20))
        print("made", name, flush=True)
        await pool.stage(name, staging)
        (staging / "file").write_text(name)
        print("written", name, flush=True)
        await pool.unstage(name, staging)
        if number % 2:
            print("deleting", name, flush=True)
            await pool.delete(name)
asyncio.run(main())
"""


def killed_writer(folder: Path, delay: float) -> list[str]:
    """What a driver said before it was killed."""
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with suppress(subprocess.TimeoutExpired):
        process.wait(delay)
    process.send_signal(signal.SIGKILL)
    said = process.communicate()[0]
    return said[: said.rfind("\n") + 1].splitlines()  # the last line may have been cut off


def answered(lines: list[str]) -> set[str]:
    """Volumes that were made, and not given up again."""
    made: set[str] = set()
    for line in lines:
        word, name = line.split()
        made = made - {name} if word == "deleting" else made | {name}
    return made


@pytest.mark.parametrize("seed", range(4))
async def test_killed_at_any_moment_nothing_is_lost(bench: Bench, seed: int) -> None:
    lines = killed_writer(bench.folder, random.Random(seed).uniform(0.1, 2.0))
    await settled(no_tool_runs)
    pool = await bench.pool()
    volumes = {volume.name: volume for volume in await pool.list()}
    assert answered(lines) <= set(volumes) == set(report())
    assert (await pool.capacity(block=True)).free == group_free()
    unmount_all(bench.folder)
    for name in volumes:
        staging = bench.folder / f"s{name[1:]}"
        await pool.create(VolumeRequest(name, 20 * MI))
        await pool.stage(name, staging)
        if lines and lines[-1] == f"written {name}" and volumes[name].state is VolumeState.FORMATTED:
            assert (staging / "file").exists()
        await pool.unstage(name, staging)
        await pool.delete(name)
    assert report() == {}


async def test_a_data_set_larger_than_memory_is_sorted_on_scratch_space(bench: Bench) -> None:
    """The use case of LVM scratch space: a program sorts twice the memory that it may have; the volume's size holds."""
    staging = bench.folder / "s"
    pool = await bench.pool()
    await pool.create(VolumeRequest("scratch", 420 * MI))
    await pool.stage("scratch", staging)
    sort_twice_the_memory(staging, memory=64 * MI)
    await pool.unstage("scratch", staging)
    await pool.delete("scratch")


def sort_twice_the_memory(folder: Path, *, memory: int) -> None:
    """Sort lines in a folder by a process with limited memory, then once more than there is space for."""
    data, output, lines = folder / "data", folder / "sorted", 0
    with data.open("wb") as file:
        while file.tell() < 2 * memory:
            block = os.urandom(MI).replace(b"\n", b" ")
            parts = [block[at : at + 1023] for at in range(0, MI, 1023)]
            file.write(b"\n".join(parts) + b"\n")
            lines += len(parts)
    sort = ["prlimit", f"--as={memory}", "--", "sort", "-S", "16M", "-T", str(folder)]
    environment = {**os.environ, "LC_ALL": "C"}
    subprocess.run([*sort, "-o", str(output), str(data)], check=True, env=environment)
    subprocess.run([*sort, "-c", str(output)], check=True, env=environment)
    assert int(subprocess.check_output(["wc", "-l", str(output)]).split()[0]) == lines
    more = [*sort, "-m", "-o", str(folder / "again"), str(output), str(output)]
    full = subprocess.run(more, stderr=subprocess.PIPE, env=environment, check=False)
    assert b"No space left on device" in full.stderr
