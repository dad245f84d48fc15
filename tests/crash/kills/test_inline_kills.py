"""An inline driver that is killed before each system call of publishing, renewing and unpublishing a volume."""

from __future__ import annotations

import asyncio
import itertools
import os
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.crash.kills.tracer import Step, Tracer, in_fork
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


def _run(body: Callable[[], Awaitable[None]]) -> None:
    """For a forked process."""
    try:
        asyncio.run(body())  # type: ignore[arg-type]
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _killed_at(tracer: Tracer, number: int, body: Callable[[], Awaitable[None]]) -> str:
    """The step that the body was killed before, "" if it ended first."""
    at: list[str] = []

    def kill(step: Step) -> bool:
        if step.number == number:
            at.append(step.what)
            tracer.kill_all()
        return bool(at)

    ended = tracer.run(lambda: _run(body), traced=True, at_step=kill)
    assert os.WIFEXITED(ended.status) != bool(at)
    assert at or os.WEXITSTATUS(ended.status) == 0
    tracer.outlast()
    return at[0] if at else ""


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
    count = tmp_path / "count"

    def campaign() -> None:
        tracer = Tracer()
        for number in range(1, _MOST):
            life = Life(tmp_path / f"{number}", kind)
            life.folder.mkdir()
            if kind == "shared tree":
                assert tracer.run(partial(_run, life.neighbor), traced=False).status == 0
            if phase != "publish":
                assert tracer.run(partial(_run, life.publish), traced=False).status == 0
            at = _killed_at(tracer, number, getattr(life, phase))
            check = partial(life.check, EXPECTED[phase], is_over=phase == "unpublish")
            ended = tracer.run(partial(_run, check), traced=False)
            assert ended.status == 0, f"killed at step {number}: {at}"
            mount.umount(life.folder / "mem")
            if not at:
                count.write_text(str(number - 1))
                return
        raise AssertionError("it never ends")

    try:
        in_fork(campaign, _SECONDS)
    finally:
        for one in reversed([one.target for one in mount.mounts() if one.target.startswith(f"{tmp_path}/")]):
            mount.umount(one, lazy=True)
    kills = int(count.read_text())
    assert kills > 5 or phase == "renew"
    tell(f"inline driver killed at each of {kills} steps of {phase}, {kind}")
