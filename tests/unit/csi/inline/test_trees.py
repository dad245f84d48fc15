"""Trees of inline volumes on real overlays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.csi.inline.world import World

from tonnage.base.errors import InvalidError, UnsupportedError
from tonnage.csi.inline.base import InlinePod, Tree, WritableLayer
from tonnage.host import mount


class TmpfsPools:
    """Writable layers of a tmpfs: a real limit, and nothing to set up."""

    def __init__(self) -> None:
        self.made: set[str] = set()

    async def make(self, name: str, layer: WritableLayer, staging: Path, _pod: InlinePod) -> None:
        self.made.add(name)
        if not mount.is_mount(staging):
            mount.mount("tmpfs", staging, "tmpfs", [f"size={layer.size}"])

    async def remove(self, name: str, staging: Path) -> None:
        mount.umount(staging)
        self.made.discard(name)


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, Path]:
    top, bottom = tmp_path / "layers" / "top", tmp_path / "layers" / "bottom"
    for layer in (top, bottom):
        (layer / "sub").mkdir(parents=True)
        (layer / "sub" / "who").write_text(layer.name)
    (bottom / "only").write_text("below")
    (bottom / "out").symlink_to("/etc")
    return top, bottom


async def test_folders_on_top_of_each_other_are_shown_read_only(world: World, layers: tuple[Path, Path]) -> None:
    world.source.result = Tree(layers)
    await world.driver.start()
    await world.driver.publish(world.request())
    assert (world.target() / "sub" / "who").read_text() == "top"
    assert (world.target() / "only").read_text() == "below"
    with pytest.raises(OSError, match="Read-only"):
        (world.target() / "new").write_text("x")
    await world.restart()
    await world.driver.publish(world.request())
    assert len(world.source.asked) == 1
    await world.driver.unpublish("csi-1", str(world.target()))
    assert world.left() == []
    assert list((world.folder / "trees").iterdir()) == []
    await world.driver.stop()


@pytest.mark.slow
async def test_100_pods_of_one_image_share_one_overlay_which_goes_with_the_last(
    world: World, layers: tuple[Path, Path]
) -> None:
    world.source.result = Tree(layers)
    await world.driver.start()
    targets = [world.target(f"t{number}") for number in range(101)]
    for number in range(100):
        await world.driver.publish(world.request(f"csi-{number}", f"t{number}"))
    (overlay,) = {os.stat(target).st_dev for target in targets[:100]}
    assert _overlays(world.folder) == {overlay}
    await world.driver.unpublish("csi-0", str(targets[0]))
    await world.restart()
    await world.driver.publish(world.request("csi-100", "t100"))
    assert {os.stat(target).st_dev for target in targets[1:]} == {overlay}
    assert (targets[100] / "sub" / "who").read_text() == "top"
    for number in range(1, 101):
        await world.driver.unpublish(f"csi-{number}", str(targets[number]))
    assert _overlays(world.folder) == set()
    assert world.left() == []
    assert list((world.folder / "trees").iterdir()) == []
    await world.driver.stop()


def _overlays(folder: Path) -> set[int]:
    """Device numbers of the overlays that are mounted below a folder."""
    found = [one for one in mount.mounts() if one.target.startswith(str(folder)) and one.fstype == "overlay"]
    return {os.stat(one.target).st_dev for one in found}


async def test_one_folder_and_a_path_of_it(world: World, layers: tuple[Path, Path]) -> None:
    world.source.result = Tree(layers[1:], "sub")
    await world.driver.start()
    await world.driver.publish(world.request())
    assert (world.target() / "who").read_text() == "bottom"
    for path, text in (("out", "leads out"), ("../..", "leads out"), ("only", "no such folder")):
        world.source.result = Tree(layers[1:], path)
        with pytest.raises(InvalidError, match=text):
            await world.driver.publish(world.request("csi-2", "t2"))
    await world.driver.stop()


async def test_what_a_pod_writes_is_limited_survives_a_restart_and_goes_with_the_pod(
    world: World, layers: tuple[Path, Path]
) -> None:
    pools = TmpfsPools()
    world.options = {"pools": pools}
    world.driver = world.made()
    world.source.result = Tree(layers, writable=WritableLayer(1 << 20))
    await world.driver.start()
    await world.driver.publish(world.request())
    (world.target() / "sub" / "who").write_text("pod")
    with pytest.raises(OSError, match="No space"):
        (world.target() / "big").write_bytes(bytes(2 << 20))
    await world.restart()
    await world.driver.publish(world.request())
    assert (world.target() / "sub" / "who").read_text() == "pod"
    assert (layers[0] / "sub" / "who").read_text() == "top"
    usage = await world.driver.usage("csi-1", str(world.target()))
    assert usage.total == 1 << 20
    await world.driver.unpublish("csi-1", str(world.target()))
    assert pools.made == set()
    assert world.left() == []
    await world.driver.stop()


async def test_a_writable_tree_without_a_pool_is_rejected(world: World, layers: tuple[Path, Path]) -> None:
    world.source.result = Tree(layers, writable=WritableLayer(1 << 20))
    await world.driver.start()
    with pytest.raises(UnsupportedError, match="readOnly: true"):
        await world.driver.publish(world.request())
    assert world.left() == []
    await world.driver.stop()


async def test_the_root_is_the_images_until_the_pod_changes_it(world: World, layers: tuple[Path, Path]) -> None:
    os.chmod(layers[0], 0o1711)
    os.chown(layers[0], 33, 44)
    world.options = {"pools": TmpfsPools()}
    world.driver = world.made()
    world.source.result = Tree(layers, writable=WritableLayer(1 << 20))
    await world.driver.start()
    await world.driver.publish(world.request())
    found = world.target().stat()
    assert (oct(found.st_mode & 0o7777), found.st_uid, found.st_gid) == ("0o1711", 33, 44)
    os.chmod(world.target(), 0o750)
    await world.restart()
    await world.driver.publish(world.request())
    assert oct(world.target().stat().st_mode & 0o7777) == "0o750"
    await world.driver.unpublish("csi-1", str(world.target()))
    await world.driver.stop()
