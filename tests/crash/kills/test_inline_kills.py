"""An inline driver that is killed before each system call of publishing, renewing and unpublishing a volume."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.crash.kills.inline_campaign import kill_at_each_step
from tests.unit.csi.inline.test_driver import Layers, files
from tests.unit.csi.inline.world import World

from tonnage.csi.inline.base import Filled, Tree, WritableLayer
from tonnage.csi.inline.volume import InlinePhase
from tonnage.host import mount

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("rooted", "traced")]
_SECONDS = 300
_MOST = 400
EXPECTED = {"publish": {b"one"}, "renew": {b"one", b"two"}, "unpublish": {b"one"}}
"""Phase that is interrupted -> what a pod may see after it."""


@dataclass
class Life:
    """One volume below a folder. A new one is what a new process is.

    A shared tree is that of another volume, which is there all the time, too.
    """

    folder: Path
    kind: str

    def world(self, text: bytes = b"one") -> World:
        world = World(self.folder)
        world.options["pools"] = Layers()
        world.driver = world.made()
        world.source.result = self.content(text)
        return world

    def content(self, text: bytes) -> Filled:
        if self.kind == "files":
            return files(text)
        layers = tuple(self.folder / name for name in ("image", "below"))
        for layer in layers:
            layer.mkdir(parents=True, exist_ok=True)
        (layers[0] / "a").write_bytes(text)
        return Tree(layers) if self.kind == "shared tree" else Tree(layers[:1], writable=WritableLayer(1 << 20))

    async def neighbor(self) -> None:
        world = self.world()
        await world.driver.start()
        await world.driver.publish(world.request("csi-0", "other"))
        await world.driver.stop()

    async def publish(self) -> None:
        world = self.world()
        await world.driver.start()
        await world.driver.publish(world.request())
        await world.driver.stop()

    async def renew(self) -> None:
        world = self.world(b"two")
        await world.driver.start()
        await world.driver._renew("csi-1")
        await world.driver.stop()

    async def unpublish(self) -> None:
        world = self.world()
        await world.driver.start()
        await world.driver.unpublish("csi-1", str(world.target()))
        await world.driver.stop()

    async def check(self, expected: set[bytes], *, is_over: bool) -> None:
        """What a new driver makes of what is left, and that a pod gets its volume and the node its memory."""
        world = self.world()
        await world.driver.start()
        shown = {r.key for r in world.driver.store.records() if r.phase is InlinePhase.SHOWN} - {"csi-0"}
        for name in os.listdir(world.folder / "mem"):
            assert (world.folder / "mem" / name / "record").is_file(), "files without a record"
        if not is_over:
            await world.driver.publish(world.request())
            assert (world.target() / "a").read_bytes() in expected
            assert sum(one.target == str(world.target()) for one in mount.mounts()) == 1
            assert bool(world.source.asked) != bool(shown), "a volume that was answered is filled once"
        await world.driver.unpublish("csi-1", str(world.target()))
        if self.kind == "shared tree":
            assert (world.target("other") / "a").read_bytes() == b"one"
            await world.driver.unpublish("csi-0", str(world.target("other")))
        assert world.left() == []
        assert not (world.folder / "trees").exists() or os.listdir(world.folder / "trees") == []
        await world.driver.stop()


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        *itertools.product(("publish", "renew", "unpublish"), ("files", "writable tree")),
        *itertools.product(("publish", "unpublish"), ("shared tree",)),
    ],
)
def test_a_kill_before_any_step_leaves_what_the_next_driver_can_finish(
    tmp_path: Path, phase: str, kind: str, tell: Callable[[str], None]
) -> None:
    before = [*(["neighbor"] if kind == "shared tree" else []), *(["publish"] if phase != "publish" else [])]
    kills = kill_at_each_step(
        tmp_path,
        partial(Life, kind=kind),
        phase,
        lambda life: life.check(EXPECTED[phase], is_over=phase == "unpublish"),
        before=before,
        most=_MOST,
        seconds=_SECONDS,
    )
    assert kills > 5 or phase == "renew"
    tell(f"inline driver killed at each of {kills} steps of {phase}, {kind}")
