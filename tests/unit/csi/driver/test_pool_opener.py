"""Pools that cannot be opened: the others serve, and they are tried again when a call comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.errors import HostError, InvalidError, NotFoundError, TonnageError, UnavailableError
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.pool_opener import PAUSE, Openings
from tonnage.csi.errors import Code, CsiError
from tonnage.storage.pools.base.contract import PoolVolume, VolumeRequest
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
MOUNT = VolumeCapability()
INLINE = {"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"}
Rejected = Callable[..., Awaitable[CsiError]]


class Lost(FakePool):
    """A pool whose disk is away until somebody brings it. dead: it does not answer at all."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 10 * GIB)
        self.is_open = False
        self.failure: Exception | None = UnavailableError("the disk is not there")
        self.tried = 0
        self.dead: asyncio.Event | None = None

    async def open(self) -> None:
        self.tried += 1
        if self.dead is not None:
            await self.dead.wait()
        if self.failure is not None:
            raise self.failure
        self.is_open = True

    def _check(self) -> None:
        if not self.is_open:
            raise UnavailableError(f"{self.name} is not open")

    async def get(self, name: str) -> PoolVolume:
        self._check()
        return await super().get(name)

    async def list(self) -> list[PoolVolume]:
        self._check()
        return list(await super().list())

    async def create(self, request: VolumeRequest) -> PoolVolume:
        self._check()
        return await super().create(request)

    async def delete(self, name: str, *, wait: bool = True) -> None:
        self._check()
        await super().delete(name, wait=wait)


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")


class Bench:
    """A driver over a pool that is well and one that is lost, its openings and a client."""

    def __init__(self, folder: Path) -> None:
        self.lost, self.well, self.time = Lost("lost"), FakePool("well", 10 * GIB), Time()
        self.late: list[str] = []
        self.pools: dict[str, Pool] = {"lost": self.lost, "well": self.well}
        self.openings = Openings(self.pools, opened=self._opened, clock=self.time)
        self.driver = Driver("n", self.pools, folder / "state", default_pool="well", openings=self.openings)
        self.client = FullCsiClient(folder / "csi.sock")

    async def _opened(self, pool: Pool) -> None:
        self.late.append(pool.name)

    async def later(self) -> None:
        """The next call tries again."""
        self.time.now += PAUSE


@pytest.fixture
async def bench(folder: Path) -> AsyncIterator[Bench]:
    made = Bench(folder)
    await made.openings.open()
    async with DriverEndpoint(made.driver, made.client.socket), made.client:
        yield made
    await made.openings.close()


async def test_the_other_pool_serves(bench: Bench, rejected: Rejected) -> None:
    client = bench.client
    volume = (await client.create_volume("v", GIB, [MOUNT])).id
    assert [found.id for found in await client.list_volumes()] == [volume]
    assert await client.list_snapshots() == []
    words = (Code.UNAVAILABLE, "pool lost is not open: the disk is not there")
    await rejected(client.create_volume("w", GIB, [MOUNT], parameters={"pool": "lost"}), Code.UNAVAILABLE)
    await rejected(client.delete_volume("lost/v"), *words)
    await rejected(client.get_volume("lost/v"), *words)
    await rejected(client.expand_volume("lost/v", GIB), *words)
    await rejected(client.list_snapshots(snapshot_id="lost/s"), *words)
    await client.delete_volume(volume)


async def test_inline_volumes_of_the_other_pool(bench: Bench, folder: Path, rejected: Rejected) -> None:
    client, target = bench.client, folder / "t"
    await client.publish("csi-1", target, MOUNT, context=INLINE)
    await client.unpublish("csi-1", target)
    assert not target.exists()
    # One that is in no open pool may be in the lost one: it is not gone.
    await rejected(client.unpublish("csi-2", target), Code.UNAVAILABLE, "the disk is not there")
    await rejected(client.publish("csi-2", target, MOUNT, context={**INLINE, "pool": "lost"}), Code.UNAVAILABLE)


async def test_it_is_tried_again_when_asked_but_not_at_once(bench: Bench, rejected: Rejected) -> None:
    client = bench.client
    for _ in range(3):
        await rejected(client.get_volume("lost/v"), Code.UNAVAILABLE)
    assert bench.lost.tried == 1
    await bench.later()
    bench.lost.failure = HostError("the disk has a bad block")
    await rejected(client.get_volume("lost/v"), Code.UNAVAILABLE, "the disk has a bad block")
    assert bench.lost.tried == 2

    await bench.later()
    bench.lost.failure = None
    await rejected(client.get_volume("lost/v"), Code.NOT_FOUND)
    assert (bench.lost.tried, bench.late, bench.openings.failures) == (3, ["lost"], {})
    await bench.later()
    assert (await client.create_volume("w", GIB, [MOUNT], parameters={"pool": "lost"})).id == "lost/w"
    assert bench.lost.tried == 3


async def test_a_fault_of_the_program_is_no_end(bench: Bench, rejected: Rejected) -> None:
    await bench.later()
    bench.lost.failure = ZeroDivisionError("oops")
    await rejected(bench.client.get_volume("lost/v"), Code.UNAVAILABLE, "ZeroDivisionError: oops")
    await bench.later()
    bench.lost.failure = None
    await rejected(bench.client.get_volume("lost/v"), Code.NOT_FOUND)


async def test_a_disk_that_does_not_answer_holds_up_nobody_else(bench: Bench, rejected: Rejected) -> None:
    bench.openings.patience = 0.05
    await bench.later()
    bench.lost.dead, bench.lost.failure = asyncio.Event(), None
    volume = (await bench.client.create_volume("v", GIB, [MOUNT])).id  # begins the attempt, waits a little
    await bench.later()
    await bench.client.delete_volume(volume)  # no second attempt while the first one hangs
    await rejected(bench.client.get_volume("lost/v"), Code.UNAVAILABLE)
    assert bench.lost.tried == 2
    bench.lost.dead.set()
    while bench.openings.failures:
        await asyncio.sleep(0)
    await rejected(bench.client.get_volume("lost/v"), Code.NOT_FOUND)


async def test_the_start_fails_when_no_pool_can_be_opened() -> None:
    first, second = Lost("a"), Lost("b")
    second.failure = InvalidError("nonsense")
    openings = Openings({"a": first, "b": second})
    with pytest.raises(TonnageError, match="the disk is not there"):
        await openings.open()
    assert set(openings.failures) == {"a", "b"}


async def test_a_pool_that_does_not_answer_at_start_is_not_waited_for() -> None:
    lost = Lost("lost")
    lost.dead, lost.failure = asyncio.Event(), None
    openings = Openings({"lost": lost, "well": FakePool("well", GIB)})
    openings.start_patience = 0.05
    await openings.open()
    assert "has not answered" in openings.why("lost")
    assert openings.why("well") == ""
    lost.dead.set()
    while openings.failures:
        await asyncio.sleep(0)
    with pytest.raises(NotFoundError):
        await lost.get("v")
