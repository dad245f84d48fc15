"""`tonnage pools init|extend` on real loop devices: a dry run, the doing, again after a kill, and every rejection."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need, needs

from tonnage.base.errors import HostError
from tonnage.host import mount
from tonnage.host.run import CommandError, run
from tonnage.storage.pools import device_setup, setup_plan
from tonnage.storage.pools.config import parse

pytestmark = pytest.mark.real

Run = Callable[..., Any]
MI = 1024**2


@pytest.fixture
def disks(real_folder: Path) -> Iterator[Callable[[], Path]]:
    """Makes empty disks of 700 MiB, sparse files on loop devices."""
    attached: list[str] = []

    def make() -> Path:
        file = real_folder / f"disk{len(attached)}"
        file.touch()
        os.truncate(file, 700 * MI)
        attached.append(run(["losetup", "--find", "--show", str(file)]).strip())
        return Path(attached[-1])

    yield make
    for entry in [e.target for e in mount.mounts() if e.target.startswith(str(real_folder))]:
        run(["umount", entry])
    for node in attached:
        run(["losetup", "--detach", node])


def test_a_dry_run_changes_nothing(tonnage: Run, disks: Callable[[], Path], real_folder: Path) -> None:
    disk, where = disks(), real_folder / "fast"

    shown = tonnage("pools", "init", f"btrfs:{where}", disk)

    assert shown.code == 0
    assert "nothing was changed; --yes runs them" in shown.out
    assert f"mkfs.btrfs --quiet --label tonnage --data single --metadata dup {disk}" in shown.out
    assert not where.exists()
    assert run(["wipefs", "--no-act", str(disk)]) == ""


@pytest.mark.parametrize(("kind", "fstype"), [("btrfs", "btrfs"), ("image", "xfs"), ("image", "ext4")])
def test_a_pool_is_made_and_holds_volumes(
    tonnage: Run,
    disks: Callable[[], Path],
    real_folder: Path,
    kind: str,
    fstype: str,
) -> None:
    need(f"mkfs.{fstype}")
    disk, where = disks(), real_folder / "fast"
    asked = ("pools", "init", f"{kind}:{where}", disk, "--fstype", fstype, "--yes")

    made = tonnage(*asked)

    assert made.code == 0, made.error
    (found,) = [entry for entry in mount.mounts() if entry.target == str(where)]
    assert (found.fstype, found.source) == (fstype, str(disk))
    uuid = run(["blkid", "--output", "value", "--match-tag", "UUID", str(disk)]).strip()
    assert f"next: UUID={uuid} {where} {fstype} " in made.out
    again = tonnage(*asked)
    assert again.code == 0
    assert "nothing to do" in again.out
    run(["umount", str(where)])  # as after a restart without a line in fstab
    lost = tonnage("driver", "--check", "--endpoint", "unix:///tmp/x.sock", "--pool", f"{kind}:{where}")
    assert lost.code == 2
    assert f"the disk of {where} is not mounted" in lost.out
    assert tonnage(*asked).code == 0
    socket = f"unix://{real_folder}/csi.sock"
    checked = tonnage("driver", "--check", "--pool", f"{kind}:{where}", "--node-name", "n1", "--endpoint", socket)
    assert checked.code == 0, checked.error


def test_what_a_kill_left_is_taken_up(tonnage: Run, disks: Callable[[], Path], real_folder: Path) -> None:
    disk, where = disks(), real_folder / "fast"
    plan = device_setup.plan_init(parse(f"btrfs:{where}"), [disk])
    run(plan.steps[0].command)
    before = run(["blkid", "--output", "value", "--match-tag", "UUID", str(disk)])

    assert tonnage("pools", "init", f"btrfs:{where}", disk, "--yes").code == 0

    assert run(["blkid", "--output", "value", "--match-tag", "UUID", str(disk)]) == before
    assert mount.is_mount(where)


def test_a_btrfs_takes_more_devices_and_the_room_that_its_own_gained(
    tonnage: Run, disks: Callable[[], Path], real_folder: Path
) -> None:
    first, second, where = disks(), disks(), real_folder / "fast"
    assert tonnage("pools", "init", f"btrfs:{where}", first, "--yes").code == 0
    small = os.statvfs(where)

    assert tonnage("pools", "extend", f"btrfs:{where}", second, "--yes").code == 0
    both = os.statvfs(where)
    assert both.f_blocks == 2 * small.f_blocks

    os.truncate(real_folder / "disk0", 1400 * MI)
    run(["losetup", "--set-capacity", str(first)])
    assert tonnage("pools", "extend", f"btrfs:{where}", "--yes").code == 0
    assert os.statvfs(where).f_blocks == 3 * small.f_blocks
    assert "nothing to do" in tonnage("pools", "extend", f"btrfs:{where}", second, "--yes").out


def test_devices_with_anything_on_them_are_rejected(tonnage: Run, disks: Callable[[], Path], real_folder: Path) -> None:
    disk, where = disks(), real_folder / "fast"
    run(["mkfs.ext4", "-q", str(disk)])

    shown = tonnage("pools", "init", f"btrfs:{where}", disk, "--yes")

    assert shown.code == 3
    assert f"{disk} is not empty: it holds ext4. If nothing on it is needed: wipefs --all {disk}" in shown.error
    run(["mount", str(disk), str(_folder(real_folder / "used"))])
    shown = tonnage("pools", "init", f"btrfs:{where}", disk, "--yes")
    assert shown.code == 3
    assert f"is in use: it is mounted at {real_folder / 'used'}" in shown.error
    assert mount.is_mount(real_folder / "used")


def test_a_partition_table_is_rejected(tonnage: Run, disks: Callable[[], Path], real_folder: Path) -> None:
    disk = disks()
    entry = struct.pack("<B3sB3sII", 0, b"", 0x83, b"", 2048, 204800)
    disk.write_bytes(b"".ljust(446, b"\0") + entry.ljust(64, b"\0") + b"\x55\xaa")

    shown = tonnage("pools", "init", f"btrfs:{real_folder}/fast", disk, "--yes")

    assert shown.code == 3
    assert "it holds dos" in shown.error or "it has partitions" in shown.error


def test_a_folder_with_files_is_rejected(tonnage: Run, disks: Callable[[], Path], real_folder: Path) -> None:
    (_folder(real_folder / "fast") / "letter").touch()

    shown = tonnage("pools", "init", f"btrfs:{real_folder}/fast", disks(), "--yes")

    assert shown.code == 3
    assert "is not empty" in shown.error


def test_a_volume_group_is_made_and_extended(tonnage: Run, disks: Callable[[], Path]) -> None:
    need("lvm")
    first, second, group = disks(), disks(), f"tonnage-test-{os.getpid()}"
    try:
        made = tonnage("pools", "init", f"lvm:{group}", first, "--yes")
        if "not found in device" in made.error or "/dev/mapper/control" in made.error:
            pytest.skip(f"LVM does not work here: {made.error}")
        assert made.code == 0, made.error
        assert "nothing to do" in tonnage("pools", "init", f"lvm:{group}", first, "--yes").out

        missing = tonnage("pools", "init", f"lvm:{group}", first, second, "--yes")
        assert missing.code == 3
        assert f"`tonnage pools extend lvm:{group} {second}` adds it" in missing.error

        run(["lvm", "pvcreate", str(second)])  # as a run that was killed before vgextend leaves it
        assert tonnage("pools", "extend", f"lvm:{group}", second, "--yes").code == 0
        assert run(["lvm", "vgs", "--noheadings", "-o", "pv_count", group]).strip() == "2"
        assert "nothing to do" in tonnage("pools", "extend", f"lvm:{group}", second, "--yes").out
    finally:
        with suppress(CommandError):
            run(["lvm", "vgremove", "--yes", group])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("init", "memory", "/dev/null"), "not made of devices"),
        (("init", "image:/mnt/x", "/dev/null"), "is not a block device"),
        (("init", "image:/mnt/x", "/dev/none"), "No such file"),
        (("init", "image:/mnt/x", "/dev/a", "/dev/b"), "xfs takes one device"),
        (("init", "image:/mnt/x", "/dev/a", "/dev/a"), "named twice"),
        (("init", "quota:/mnt/x", "/dev/a", "--fstype", "btrfs"), "is on xfs or ext4"),
        pytest.param(
            ("extend", "lvm:nosuchgroup", "/dev/a"), "there is no volume group nosuchgroup", marks=needs("lvm")
        ),
        (("extend", "image:/nowhere"), "nothing is mounted at /nowhere"),
    ],
)
def test_what_makes_no_sense_is_rejected(tonnage: Run, arguments: tuple[str, ...], said: str) -> None:
    shown = tonnage("pools", *arguments)

    assert shown.code in (2, 3, 4)
    assert said in shown.error


def test_a_step_that_fails_says_which(disks: Callable[[], Path], real_folder: Path) -> None:
    plan = setup_plan.PoolSetupPlan((setup_plan.Step(("mount", "/dev/nothing", str(real_folder)), "mount it"),))

    with pytest.raises(HostError, match="mount it: mount /dev/nothing"):
        plan.run(lambda step: None)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
