"""Any order of calls, repeated and out of turn, through the socket and over restarts: driver and model agree."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import CreatedVolume, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.storage.pools.fake.backend import FakePool

MIB = 1 << 20
SIZE = 10 * MIB
MOUNT = VolumeCapability()
NAMES = st.sampled_from(["a", "b", "c/d"])
TARGETS = st.sampled_from(["t1", "t2"])
T = TypeVar("T")


class Life(RuleBasedStateMachine):
    """The model: sizes of volumes, which are staged, what each target shows, which inline volumes there are."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="life"))
        (self.folder / "staging").mkdir()
        self.runner = asyncio.Runner()
        self.pool = FakePool("p", SIZE)
        self.driver = Driver("node", {"p": self.pool}, self.folder / "state")
        self.endpoint = DriverEndpoint(self.driver, self.folder / "csi.sock")
        self.client = CsiClient(self.endpoint.socket)
        self.run(self.endpoint.start())
        self.sizes: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self.staged: set[str] = set()
        self.shown: dict[str, str] = {}
        self.inline: dict[str, int] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def code(self, work: Coroutine[Any, Any, Any]) -> Code:
        try:
            self.run(work)
        except CsiError as failure:
            return failure.code
        return Code.OK

    def teardown(self) -> None:
        self.client.close()
        self.run(self.endpoint.stop())
        self.runner.close()
        shutil.rmtree(self.folder)

    def vid(self, name: str) -> str:
        return self.ids.get(name, f"p/{name.replace('/', '-')}")

    def used(self) -> int:
        return sum(self.sizes.values()) + sum(self.inline.values())

    @rule(name=NAMES, size=st.integers(1, 12))
    def create(self, name: str, size: int) -> None:
        size *= MIB
        made: list[CreatedVolume] = []

        async def call() -> None:
            made.append(await self.client.create_volume(name, size, [MOUNT]))

        code = self.code(call())
        if name in self.sizes and self.sizes[name] < size:
            assert code is Code.ALREADY_EXISTS
        elif name not in self.sizes and self.used() + size > SIZE:
            assert code is (Code.OUT_OF_RANGE if size > SIZE else Code.RESOURCE_EXHAUSTED)
        else:
            assert code is Code.OK
            assert made[0].size == self.sizes.setdefault(name, size) >= size
            assert made[0].id == self.ids.setdefault(name, made[0].id)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        used = name in self.staged or name in self.shown.values()
        code = self.code(self.client.delete_volume(self.vid(name)))
        if used:
            assert code is Code.FAILED_PRECONDITION
            return
        assert code is Code.OK
        self.sizes.pop(name, None)

    @rule(name=NAMES)
    def stage(self, name: str) -> None:
        code = self.code(self.client.stage(self.vid(name), self.staging(name), MOUNT))
        assert code is (Code.OK if name in self.sizes else Code.NOT_FOUND)
        if code is Code.OK:
            self.staged.add(name)

    def staging(self, name: str) -> Path:
        return self.folder / "staging" / name.replace("/", "-")

    @rule(name=NAMES)
    def unstage(self, name: str) -> None:
        assert self.code(self.client.unstage(self.vid(name), self.staging(name))) is Code.OK
        self.staged.discard(name)

    @rule(name=NAMES, at=TARGETS)
    def publish(self, name: str, at: str) -> None:
        code = self.code(self.client.publish(self.vid(name), self.folder / at, MOUNT, staging=self.staging(name)))
        if name not in self.sizes:
            assert code is Code.NOT_FOUND
        elif name not in self.staged:
            assert code is Code.FAILED_PRECONDITION
        elif self.shown.get(at, name) != name:
            assert code is Code.ALREADY_EXISTS
        else:
            assert code is Code.OK
            self.shown[at] = name

    @rule(at=TARGETS)
    def unpublish(self, at: str) -> None:
        name = self.shown.pop(at, "a")
        assert self.code(self.client.unpublish(self.vid(name), self.folder / at)) is Code.OK

    @rule(handle=st.sampled_from(["csi-1", "csi-2"]), size=st.integers(0, 11))
    def publish_inline(self, handle: str, size: int) -> None:
        size *= MIB
        context = {names.CSI_EPHEMERAL: "true", "size": str(size)}
        code = self.code(self.client.publish(handle, self.folder / handle, MOUNT, context=context))
        if size == 0:
            assert code is Code.INVALID_ARGUMENT
        elif handle in self.inline:
            assert code is (Code.OK if size <= self.inline[handle] else Code.ALREADY_EXISTS)
        elif size + self.used() > SIZE:
            assert code is (Code.OUT_OF_RANGE if size > SIZE else Code.RESOURCE_EXHAUSTED)
        else:
            assert code is Code.OK
            self.inline[handle] = size

    @rule(handle=st.sampled_from(["csi-1", "csi-2"]))
    def unpublish_inline(self, handle: str) -> None:
        assert self.code(self.client.unpublish(handle, self.folder / handle)) is Code.OK
        self.inline.pop(handle, None)

    @rule()
    def restart(self) -> None:
        self.run(self.endpoint.stop())
        assert self.code(self.client.probe()) is Code.UNAVAILABLE
        self.endpoint = DriverEndpoint(self.driver, self.folder / "csi.sock")
        self.run(self.endpoint.start())

    @invariant()
    def driver_and_model_agree(self) -> None:
        listed = {volume.id: volume.size for volume in self.run(self.client.list_volumes(page=1))}
        assert listed == {self.ids[name]: size for name, size in self.sizes.items()}
        assert self.run(self.client.get_capacity()).available == SIZE - self.used()
        there = {path.name for path in self.folder.iterdir()} - {"csi.sock", "state", "staging"}
        assert there == set(self.shown) | set(self.inline)


TestLife = Life.TestCase
TestLife.settings = examples(15, machine=True, stateful_step_count=25, deadline=None)
