"""When the snapshot controller works: not beside another one, and not before its kinds are there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiAlreadyExistsError, ApiError, ApiNotFoundError
from tonnage.controller.snapshots.role import LEASE, LEASE_NAMESPACE, SnapshotRole
from tonnage.kubernetes.api.kinds import LEASES, NAMESPACES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.wait import Eventually


class Loop:
    """A controller that only counts."""

    def __init__(self) -> None:
        self.made = self.works = 0

    def make(self, _: Any) -> Loop:
        self.made += 1
        return self

    async def run(self) -> None:
        self.works += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.works -= 1


async def renew(kube: Client, clock: ManualClock, *, holder: str = "upstream") -> None:
    """The Lease of another controller, as it is renewed now."""
    spec = {"holderIdentity": holder, "renewTime": rfc3339(clock.time(), micro=True), "leaseDurationSeconds": 15}
    with contextlib.suppress(ApiAlreadyExistsError):
        await kube.create(NAMESPACES, {"metadata": {"name": LEASE_NAMESPACE}})
    try:
        await kube.patch(LEASES, LEASE, {"spec": spec}, LEASE_NAMESPACE)
    except ApiNotFoundError:
        await kube.create(LEASES, {"metadata": {"name": LEASE}, "spec": spec}, LEASE_NAMESPACE)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def role(kube: Client, informers: Informers, manual_clock: ManualClock, loop: Loop) -> SnapshotRole:
    return SnapshotRole(context(kube, informers, clock=manual_clock), make=loop.make, look_every=0.02)


async def test_it_works_where_nobody_else_does(role: SnapshotRole, loop: Loop, running: Running) -> None:
    async with running(role):
        await asyncio.sleep(0.1)
        assert (loop.made, loop.works) == (1, 1)
    assert loop.works == 0


async def test_it_gives_way_to_another_and_comes_back(
    role: SnapshotRole, loop: Loop, kube: Client, manual_clock: ManualClock, running: Running, eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.WARNING)
    await renew(kube, manual_clock)

    async def renewing() -> None:
        while True:
            manual_clock.now += 1
            await renew(kube, manual_clock)
            await asyncio.sleep(0.001)

    async def works(count: int) -> bool:
        return loop.works == count

    async with running(role):
        other = asyncio.ensure_future(renewing())
        await asyncio.sleep(0.3)
        assert loop.made == 0
        said = [record.message for record in caplog.records if "snapshot controller is off" in record.message]
        assert len(said) == 1
        other.cancel()
        await eventually(lambda: works(1))
        other = asyncio.ensure_future(renewing())
        await eventually(lambda: works(0))
        other.cancel()
        await renew(kube, manual_clock, holder="")
        await eventually(lambda: works(1))
        assert loop.made == 1


async def test_it_waits_for_its_kinds(
    role: SnapshotRole, loop: Loop, running: Running, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, served = 0, False
    revision = Client.revision

    async def answer(self: Client, kind: Any, *arguments: Any, **options: Any) -> str:
        nonlocal asked
        asked += 1
        if not served:
            raise ApiError("not found", code=404, reason="NotFound")
        return await revision(self, kind, *arguments, **options)

    async def often() -> bool:
        return asked > 2

    async def works() -> bool:
        return loop.works == 1

    monkeypatch.setattr(Client, "revision", answer)
    async with running(role):
        await eventually(often)
        assert loop.made == 0
        served = True
        await eventually(works)
