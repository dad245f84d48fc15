"""Symlinks in the way of staging and target paths: nothing is mounted, removed or read through them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tonnage.csi.client import CsiClient
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.words import VolumeCapability

MOUNT = VolumeCapability()
INLINE = {"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"}
Refused = Callable[..., Awaitable[CsiError]]


@pytest.fixture
def link(folder: Path) -> Path:
    """A symlink to a folder that is none of the caller's business."""
    (folder / "outside" / "mount").mkdir(parents=True)
    (folder / "link").symlink_to("outside")
    return folder / "link"


async def test_nothing_goes_through_a_symlinked_folder(
    client: CsiClient, folder: Path, link: Path, refused: Refused
) -> None:
    volume = (await client.create_volume("v", 1 << 30, [MOUNT])).id
    staging = folder / "staging"
    await client.stage(volume, staging, MOUNT)
    words = (Code.FAILED_PRECONDITION, str(link), "is a symlink")
    for path in (link, link / "mount"):
        await refused(client.stage(volume, path, MOUNT), *words)
        await refused(client.unstage(volume, path), *words)
        await refused(client.publish(volume, folder / "target", MOUNT, staging=path), *words)
    await refused(client.publish(volume, link / "mount", MOUNT, staging=staging), *words)
    await refused(client.publish("csi-1", link / "mount", MOUNT, context=INLINE), *words)
    await refused(client.unpublish(volume, link / "mount"), *words)
    await refused(client.unpublish("csi-1", link / "mount"), *words)
    assert (folder / "outside" / "mount").is_dir()


async def test_names_that_no_file_can_have(client: CsiClient, folder: Path, refused: Refused) -> None:
    volume = (await client.create_volume("v", 1 << 30, [MOUNT])).id
    await refused(client.stage(volume, folder / ("é" * 128), MOUNT), Code.INVALID_ARGUMENT, "at most 255 bytes")
    await client.stage(volume, folder / ("é" * 127), MOUNT)
