"""One writer means one target, also for a driver that was started in between: on a real image pool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.storage.pools.config import make, parse

MI = 1 << 20


@pytest.mark.real
@pytest.mark.parametrize(("kind", "block"), [("image", False), ("image", True), ("btrfs", False)])
async def test_a_fresh_driver_knows_where_a_volume_is_shown(
    real_folder: Path,
    rejected: Callable[..., Awaitable[CsiError]],
    kind: str,
    block: bool,
) -> None:
    if kind == "btrfs":
        need("mkfs.btrfs")
    use = VolumeCapability(AccessMode.SINGLE_NODE_SINGLE_WRITER, block=block)
    staging, first, second = (real_folder / name for name in ("staging", "first", "second"))
    staging.mkdir()

    def served() -> tuple[DriverEndpoint, CsiClient]:
        driver = Driver("n", {"p": pool}, real_folder / "state")
        return DriverEndpoint(driver, real_folder / "s"), CsiClient(real_folder / "s")

    pool = make(parse(f"{kind}:{real_folder / 'pool'},name=p,size=1Gi,sparse=yes,overcommit=yes"))
    await pool.open()
    endpoint, client = served()
    async with endpoint, client:
        volume = (await client.create_volume("a", 64 * MI, [use])).id
        await client.stage(volume, staging, use)
        await client.publish(volume, first, use, staging=staging)
    await pool.close()

    pool = make(parse(f"{kind}:{real_folder / 'pool'},name=p,size=1Gi,sparse=yes,overcommit=yes"))
    await pool.open()
    endpoint, client = served()
    async with endpoint, client:
        await client.publish(volume, first, use, staging=staging)
        again = client.publish(volume, second, use, staging=staging)
        await rejected(again, Code.FAILED_PRECONDITION, str(first), "allows one target")
        await client.unpublish(volume, first)
        await client.publish(volume, second, use, staging=staging)
        await client.unpublish(volume, second)
        await client.unstage(volume, staging)
        await client.delete_volume(volume)
    await pool.close()
