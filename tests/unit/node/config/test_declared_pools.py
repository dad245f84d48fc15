"""Declared pools: what the file may say, and pools made on real loop devices at the start of a node."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import HostError, InvalidError, PreconditionError
from tonnage.host import mount
from tonnage.host.run import CommandError, run
from tonnage.node.config import declared_pools
from tonnage.node.config.declared_pools import DeclaredPool, DeclaredPoolEntry
from tonnage.storage.pools.config import parse
from tonnage.storage.pools.directory.directory import NOTE

MI = 1 << 20
POOLS = [parse("image:/mnt/a,name=a"), parse("lvm:vg0,name=b"), parse("static:/mnt/s,name=s")]


def test_entries_name_pools_of_the_configuration() -> None:
    entries = [DeclaredPoolEntry("b", ["/dev/sdb", "/dev/sdc"]), DeclaredPoolEntry("a", ["/dev/sdd"], fstype="ext4")]
    first, second = declared_pools.read(entries, POOLS)
    assert (first.pool, first.devices) == (POOLS[1], (Path("/dev/sdb"), Path("/dev/sdc")))
    assert (second.pool.name, second.fstype, str(second)) == ("a", "ext4", "pool a on /dev/sdd")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("c", ["/dev/sdb"])], r"declare\[0\].pool: 'c' is unknown, want one of a, b, s"),
        ([("s", ["/dev/sdb"])], r"declare\[0\].pool: s is of kind static, want one of image, btrfs, lvm, quota"),
        ([("a", ["/dev/sdb"]), ("a", ["/dev/sdc"])], r"declare\[1\].pool: 'a' is declared twice"),
        ([("a", [])], r"declare\[0\].devices: name at least one device"),
        ([("a", ["sdb"])], r"declare\[0\].devices: 'sdb': want a path below /dev"),
        ([("a", ["/dev/../etc/passwd"])], "want a path below /dev"),
        ([("a", ["/dev/sdb"]), ("b", ["/dev/sdb"])], "/dev/sdb is declared for pool a already"),
    ],
)
def test_entries_that_make_no_sense(entries: list[tuple[str, list[str]]], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        declared_pools.read([DeclaredPoolEntry(*entry) for entry in entries], POOLS)


@pytest.fixture
def disk(real_folder: Path) -> Iterator[Callable[[], Path]]:
    """Makes empty disks of 400 MiB, sparse files on loop devices."""
    need("mkfs.xfs")
    attached: list[str] = []

    def make() -> Path:
        file = real_folder / f"disk{len(attached)}"
        file.touch()
        os.truncate(file, 400 * MI)
        attached.append(run(["losetup", "--find", "--show", str(file)]).strip())
        return Path(attached[-1])

    yield make
    for entry in [e.target for e in mount.mounts() if e.target.startswith(str(real_folder))]:
        run(["umount", entry])
    for node in attached:
        run(["losetup", "--detach", node])


def _declared(where: Path, *devices: Path, kind: str = "image", **more: str) -> DeclaredPool:
    return DeclaredPool(parse(f"{kind}:{where},name=fast"), devices, **more)


def _source(where: Path) -> list[str]:
    return [entry.source for entry in mount.mounts() if entry.target == str(where)]


@pytest.mark.real
def test_it_is_made_once_and_mounted_again_after_a_restart_of_the_machine(
    real_folder: Path, disk: Callable[[], Path]
) -> None:
    where, device, done = real_folder / "fast", disk(), []
    declared = [_declared(where, device)]

    assert declared_pools.make(declared, lambda each, step: done.append(step.command[0])) == []
    assert (done, _source(where)) == (["mkfs.xfs", "mkdir", "touch", "mount"], [str(device)])
    (where / "file").write_text("kept")
    declared_pools.require_made(declared)

    done.clear()
    assert declared_pools.make(declared, lambda each, step: done.append(step.command[0])) == []
    assert done == []
    run(["umount", str(where)])
    assert declared_pools.make(declared, lambda each, step: done.append(step.command[0])) == []
    assert (done, (where / "file").read_text()) == (["mount"], "kept")


@pytest.mark.real
def test_nothing_is_made_without_leave(real_folder: Path, disk: Callable[[], Path]) -> None:
    where, device = real_folder / "fast", disk()
    with pytest.raises(
        PreconditionError, match=rf"declared, but not made: mkfs.xfs .*{device}; mkdir .*makePools: true"
    ):
        declared_pools.require_made([_declared(where, device)])
    assert not where.exists()
    assert run(["wipefs", "--no-act", str(device)]) == ""


def _write(device: Path, *parts: tuple[int, bytes]) -> None:
    with device.open("r+b") as file:
        for at, data in parts:
            file.seek(at)
            file.write(data)


def _head(device: Path) -> bytes:
    with device.open("rb") as file:
        return file.read(MI)


_PARTITION = b"\0\0\0\0\x83\0\0\0\0\x08\0\0\0\x10\0\0"


@pytest.mark.real
def test_disks_with_any_signature_are_rejected_and_others_are_made(
    real_folder: Path, disk: Callable[[], Path], caplog: pytest.LogCaptureFixture
) -> None:
    bad, good, where = [disk() for _ in range(5)], disk(), real_folder / "good"
    for device, command in zip(bad, (["mkfs.ext4", "-q"], ["mkswap"], ["mkfs.xfs", "-q", "-L", "mine"]), strict=False):
        run([*command, str(device)])
    _write(bad[3], (512, b"LABELONE".ljust(24, b"\0") + b"LVM2 001"))  # a physical volume, its checksum wrong
    _write(bad[4], (446, _PARTITION), (510, b"\x55\xaa"))
    before = list(map(_head, bad))

    declared = [_declared(real_folder / f"bad{number}", device) for number, device in enumerate(bad)]
    failures = declared_pools.make([*declared, _declared(where, good)], lambda each, step: None)

    for failure, device in zip(failures, bad, strict=True):
        assert failure.startswith(f"pool fast on {device}: {device} is ")
        assert "not empty: it holds " in failure or "it has partitions" in failure
    assert caplog.text.count("declared pool is not made") == len(bad)
    assert list(map(_head, bad)) == before
    assert _source(where) == [str(good)]
    assert all((each.pool.where / NOTE).exists() for each in declared if each.pool.where), "else it is made below"


@pytest.mark.real
def test_a_missing_device_stops_no_other(real_folder: Path, disk: Callable[[], Path]) -> None:
    where = real_folder / "good"
    declared = [_declared(real_folder / "bad", Path("/dev/no-such-disk")), _declared(where, disk())]
    (failure,) = declared_pools.make(declared, lambda each, step: None)
    assert "/dev/no-such-disk" in failure
    assert mount.is_mount(where)


@pytest.mark.real
@pytest.mark.parametrize("kind", ["image", "btrfs"])
def test_a_kill_after_any_command_is_made_good_by_the_next_start(
    real_folder: Path, disk: Callable[[], Path], kind: str
) -> None:
    need("mkfs.btrfs")
    fstype = "xfs" if kind == "image" else ""
    for at in itertools.count(1):
        where, device, seen = real_folder / f"{kind}-{at}", disk(), 0

        def die(_each: DeclaredPool, _step: object, at: int = at) -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

        declared = [_declared(where, device, kind=kind, fstype=fstype)]
        if not (child := os.fork()):
            declared_pools.make(declared, die)
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert declared_pools.make(declared, lambda each, step: None) == []
        assert _source(where) == [str(device)]
        if not killed:
            break
    assert at > 3


@pytest.mark.real
def test_two_agents_at_once_make_one_file_system(real_folder: Path, disk: Callable[[], Path]) -> None:
    where, device = real_folder / "fast", disk()
    code = (
        "import sys; from pathlib import Path; from tonnage.node.config import declared_pools as d;"
        " from tonnage.storage.pools.config import parse;"
        f" p = d.DeclaredPool(parse('image:{where},name=fast'), (Path('{device}'),));"
        " sys.exit(len(d.make([p], lambda e, s: print(s.command[0]))))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(said) == [[], ["mkfs.xfs", "mkdir", "touch", "mount"]]


@pytest.mark.real
def test_a_declared_btrfs_that_lacks_a_device_says_how_to_add_it(real_folder: Path, disk: Callable[[], Path]) -> None:
    need("mkfs.btrfs")
    where, first, second = real_folder / "fast", disk(), disk()
    assert declared_pools.make([_declared(where, first, kind="btrfs")], lambda each, step: None) == []
    (failure,) = declared_pools.make([_declared(where, first, second, kind="btrfs")], lambda each, step: None)
    assert f"`tonnage pools extend btrfs:{where} {second}` adds it" in failure


def test_a_failed_command_is_an_error_of_its_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(self: DeclaredPool) -> None:
        raise HostError("mkfs.xfs: exit code 1")

    monkeypatch.setattr(DeclaredPool, "plan", broken)
    declared = [_declared(tmp_path / "x", Path("/dev/none"))]
    assert declared_pools.make(declared, lambda each, step: None) == ["pool fast on /dev/none: mkfs.xfs: exit code 1"]
    declared_pools.require_made(declared)
    assert (tmp_path / "x" / NOTE).exists()


@pytest.mark.real
def test_a_declared_volume_group_is_completed_after_a_kill(disk: Callable[[], Path]) -> None:
    need("lvm")
    group, first, second = f"tonnage-test-{os.getpid()}", disk(), disk()
    declared = [DeclaredPool(parse(f"lvm:{group},name=fast"), (first, second))]
    try:
        run(["lvm", "pvcreate", str(first)])
    except CommandError as failure:
        pytest.skip(f"LVM does not work here: {failure}")
    try:
        done: list[str] = []
        assert declared_pools.make(declared, lambda each, step: done.append(step.command[1])) == []
        assert done == ["pvcreate", "vgcreate"], "the first one's physical volume is used as it is"
        assert run(["lvm", "vgs", "--noheadings", "-o", "pv_count", group]).strip() == "2"
        declared_pools.require_made(declared)
    finally:
        with suppress(CommandError):
            run(["lvm", "vgremove", "--yes", group])
