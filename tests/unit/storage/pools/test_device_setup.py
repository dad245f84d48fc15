"""Plans of pools on devices: what is rejected before a device is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError, UnsupportedError
from tonnage.storage.pools.config import parse
from tonnage.storage.pools.device_setup import plan_extend, plan_init

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
