"""Plans of pools on devices: what is refused before a device is looked at, and how a plan runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.errors import HostError, InvalidError, UnsupportedError
from tonnage.pools.config import parse
from tonnage.pools.device_setup import plan_extend, plan_init
from tonnage.pools.setup_plan import PoolSetupPlan, Step

DISK = Path("/dev/null")


@pytest.mark.parametrize(
    ("pool", "devices", "options", "error", "message"),
    [
        ("btrfs:/mnt/x", [], {}, InvalidError, "name the devices"),
        ("btrfs:/mnt/x", [DISK, DISK], {}, InvalidError, "the same device is named twice"),
        ("fake,size=1Gi", [DISK], {}, UnsupportedError, "a pool of kind fake is not made of devices"),
        ("quota:/mnt/x", [DISK], {"fstype": "btrfs"}, InvalidError, "a pool of kind quota is on xfs or ext4"),
        ("image:/mnt/x", [DISK, Path("/dev/zero")], {}, InvalidError, "xfs takes one device, 2 are named"),
        ("btrfs:/mnt/x", [DISK], {"data": "raid9"}, InvalidError, "--data 'raid9': want single, raid1 or raid10"),
    ],
)
def test_what_makes_no_sense(
    pool: str, devices: list[Path], options: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_init(parse(pool), devices, **options)


def test_a_kind_without_devices_is_not_extended() -> None:
    with pytest.raises(UnsupportedError, match="a pool of kind fake is not made of devices"):
        plan_extend(parse("fake,size=1Gi"), [DISK])


def test_a_plan_runs_its_steps_in_order(tmp_path: Path) -> None:
    folder, file = tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"
    steps = (Step(("mkdir", "-p", str(folder)), "make it"), Step(("touch", str(file)), "fill it"))
    done: list[str] = []

    PoolSetupPlan(steps).run(lambda step: done.append(str(step)))

    assert done == [f"mkdir -p {folder}", f"touch {file}"]
    assert file.exists()


def test_a_step_that_fails_ends_the_plan(tmp_path: Path) -> None:
    steps = (Step(("false",), "try it"), Step(("touch", str(tmp_path / "x")), "never"))
    with pytest.raises(HostError, match=r"^try it: "):
        PoolSetupPlan(steps).run(lambda step: None)
    assert not (tmp_path / "x").exists()
