"""Symlinks in the way of staging and target paths: nothing is mounted, removed or read through them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError

MOUNT = VolumeCapability()
INLINE = {"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"}
Rejected = Callable[..., Awaitable[CsiError]]


@pytest.fixture
def link(folder: Path) -> Path:
    """A symlink to a folder that is none of the caller's business."""
    (folder / "outside" / "mount").mkdir(parents=True)
    (folder / "link").symlink_to("outside")
    return folder / "link"


async def test_nothing_goes_through_a_symlinked_folder(
    client: FullCsiClient, folder: Path, link: Path, rejected: Rejected
) -> None:
    volume = (await client.create_volume("v", 1 << 30, [MOUNT])).id
    staging = folder / "staging"
    await client.stage(volume, staging, MOUNT)
    words = (Code.FAILED_PRECONDITION, str(link), "is a symlink")
    for path in (link, link / "mount"):
        await rejected(client.stage(volume, path, MOUNT), *words)
        await rejected(client.unstage(volume, path), *words)
        await rejected(client.publish(volume, folder / "target", MOUNT, staging=path), *words)
    await rejected(client.publish(volume, link / "mount", MOUNT, staging=staging), *words)
    await rejected(client.publish("csi-1", link / "mount", MOUNT, context=INLINE), *words)
    await rejected(client.unpublish(volume, link / "mount"), *words)
    await rejected(client.unpublish("csi-1", link / "mount"), *words)
    assert (folder / "outside" / "mount").is_dir()


async def test_names_that_no_file_can_have(client: FullCsiClient, folder: Path, rejected: Rejected) -> None:
    volume = (await client.create_volume("v", 1 << 30, [MOUNT])).id
    await rejected(client.stage(volume, folder / ("é" * 128), MOUNT), Code.INVALID_ARGUMENT, "at most 255 bytes")
    await client.stage(volume, folder / ("é" * 127), MOUNT)


async def test_a_symlink_far_up_in_the_path_is_seen(
    client: FullCsiClient, folder: Path, link: Path, rejected: Rejected
) -> None:
    volume = (await client.create_volume("v", 1 << 30, [MOUNT])).id
    deep = link / "mount" / "a" / "b"
    deep.mkdir(parents=True)
    words = (Code.FAILED_PRECONDITION, "symlink")
    await rejected(client.stage(volume, deep / "s", MOUNT), *words)
    await rejected(client.unstage(volume, deep), *words)
    await rejected(client.unpublish(volume, deep), *words)
    await rejected(client.volume_stats(volume, deep), *words)
    await rejected(client.expand_on_node(volume, deep), *words)
    await rejected(client.volume_stats(volume, link), *words)
    assert deep.is_dir()


@pytest.fixture
async def rooted(driver: Driver, folder: Path) -> AsyncIterator[FullCsiClient]:
    """A client of a driver whose callers must have their paths below `kubelet`, which is a symlink itself."""
    (folder / "disk").mkdir()
    (folder / "kubelet").symlink_to("disk")
    served = DriverEndpoint(replace(driver, roots=(folder / "kubelet",)), folder / "rooted.sock")
    async with served, FullCsiClient(served.socket) as connected:
        yield connected


async def test_paths_lie_beneath_the_root(rooted: FullCsiClient, folder: Path, rejected: Rejected) -> None:
    volume = (await rooted.create_volume("v", 1 << 30, [MOUNT])).id
    root = folder / "kubelet"
    words = (Code.INVALID_ARGUMENT, "staging_target_path", f"beneath {root}")
    for path in (folder / "staging", root, folder, folder / "kubelet-2", "/"):
        await rejected(rooted.stage(volume, path, MOUNT), *words)
        await rejected(rooted.unstage(volume, path), *words)
        await rejected(rooted.publish(volume, root / "t", MOUNT, staging=path), *words)
        await rejected(rooted.expand_on_node(volume, root / "t", staging=path), *words)
    await rejected(rooted.publish("csi-1", folder / "t", MOUNT, context=INLINE), Code.INVALID_ARGUMENT, "target_path")
    await rejected(rooted.unpublish(volume, folder / "t"), Code.INVALID_ARGUMENT, "target_path")
    await rejected(rooted.volume_stats(volume, folder), Code.NOT_FOUND, str(folder))
    assert sorted(entry.name for entry in folder.iterdir() if entry.name != "c.sock") == [
        "disk",
        "kubelet",
        "rooted.sock",
    ]


async def test_the_root_may_be_a_symlink_and_either_name_of_it_is_good(rooted: FullCsiClient, folder: Path) -> None:
    volume = (await rooted.create_volume("v", 1 << 30, [MOUNT])).id
    root, real = folder / "kubelet", folder / "disk"
    await rooted.stage(volume, root / "s", MOUNT)
    await rooted.publish(volume, root / "t", MOUNT, staging=real / "s")
    assert (await rooted.volume_stats(volume, root / "t")).total == (
        await rooted.volume_stats(volume, real / "t")
    ).total
    await rooted.unpublish(volume, real / "t")
    await rooted.unstage(volume, real / "s")
    await rooted.delete_volume(volume)


async def test_a_symlink_below_the_root_is_rejected(rooted: FullCsiClient, folder: Path, rejected: Rejected) -> None:
    volume = (await rooted.create_volume("v", 1 << 30, [MOUNT])).id
    (folder / "disk" / "pods").symlink_to(folder)
    await rejected(rooted.stage(volume, folder / "kubelet" / "pods" / "s", MOUNT), Code.FAILED_PRECONDITION, "symlink")
