"""The Node's condition while a pool cannot write: written on changes only, beside the conditions of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.hanging import HangingPool

from tonnage.base.errors import HostError
from tonnage.csi.driver.pool_opener import PAUSE, Openings
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import NODES
from tonnage.kubernetes.api.meta import Condition
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response
from tonnage.node.capacity.pool_condition import PoolFaults
from tonnage.storage.pools.core.probe import EVERY, WriteProbe
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.node import NODE, FakeNode, MakeNode
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
READY = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
HANGS = "pool scratch cannot write: a write has not ended for 20 s; look at the disk (dmesg), see tonnage pools"


@pytest.fixture
async def pool() -> AsyncIterator[HangingPool]:
    made = HangingPool("scratch", to_bytes("10Gi"))
    yield made
    made.goes.set()


@pytest.fixture
async def node(make_node: MakeNode, pool: HangingPool, kube: Client) -> FakeNode:
    made = await make_node(pool=pool)
    await _say_ready(kube)
    return made


@pytest.fixture
def writes(kube: Client, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Writes of the Node's status."""
    found, send = list[Any](), kube.transport.request

    async def request(wanted: Request) -> Response:
        if wanted.method == "PATCH" and wanted.path.endswith(f"/nodes/{NODE}/status"):
            found.append(wanted.body)
        return await send(wanted)

    monkeypatch.setattr(kube.transport, "request", request)
    return found


async def _say_ready(kube: Client) -> None:
    """By a merge patch: all other conditions are gone."""
    await kube.patch(NODES, NODE, {"status": {"conditions": [READY]}}, subresource="status")


async def _condition(kube: Client) -> Condition | None:
    found = {one.type: one for one in (await kube.get(NODES, NODE)).status.conditions}
    assert found.pop("Ready").status == "True", "those of the kubelet stay"
    assert found.keys() <= {names.POOL_UNAVAILABLE}
    return found.get(names.POOL_UNAVAILABLE)


async def _is(kube: Client, status: str) -> bool:
    found = await _condition(kube)
    return found is not None and found.status == status


async def test_it_is_true_while_the_disk_hangs_and_costs_two_writes(
    node: FakeNode, pool: HangingPool, kube: Client, writes: list[Any], eventually: Eventually
) -> None:
    await asyncio.sleep(3600)
    assert writes == []
    assert await _condition(kube) is None, "a node without a fault has none"
    pool.goes.clear()
    await pool.probe.run()
    await eventually(lambda: _is(kube, "True"))
    found = await _condition(kube)
    assert found is not None
    assert (found.reason, found.message) == ("PoolUnavailable", HANGS)
    await asyncio.sleep(3600)
    assert len(writes) == 1, "no heartbeat"
    pool.goes.set()
    await eventually(lambda: _is(kube, "False"))
    after = await _condition(kube)
    assert after is not None
    assert (after.reason, after.message) == ("PoolsAvailable", "all pools of the node can write")
    assert (after.last_transition_time or "") > (found.last_transition_time or "")
    await asyncio.sleep(3600)
    assert len(writes) == 2


async def test_a_new_agent_tries_the_pools_before_it_says_that_they_are_well(
    node: FakeNode, pool: HangingPool, kube: Client, writes: list[Any], eventually: Eventually
) -> None:
    pool.goes.clear()
    await pool.probe.run()
    await eventually(lambda: _is(kube, "True"))
    await node.kill_agent()
    former, pool.work.probe = pool.probe, WriteProbe("scratch", pool.work.probe_write, LoopClock())  # of a new process
    pool.probe.changed = pool.writable_changed
    await node.start_agent()
    await asyncio.sleep(2 * EVERY)
    assert await _is(kube, "True")
    assert len(writes) == 1
    await node.kill_agent()
    pool.goes.set()
    await asyncio.sleep(2 * EVERY)
    assert await _is(kube, "True"), "nobody is there to write it"
    await node.start_agent()
    await eventually(lambda: _is(kube, "False"))
    assert len(writes) == 2
    await former.close()


async def test_a_node_that_is_registered_again_gets_it_again(
    node: FakeNode, pool: HangingPool, kube: Client, eventually: Eventually
) -> None:
    pool.goes.clear()
    await pool.probe.run()
    await eventually(lambda: _is(kube, "True"))
    await kube.delete(NODES, NODE)
    await kube.create(NODES, {"metadata": {"name": NODE}})
    await _say_ready(kube)
    await eventually(lambda: _is(kube, "True"))
    await _say_ready(kube)
    await eventually(lambda: _is(kube, "True"))


class _Gone(FakePool):
    """A pool whose disk is not there."""

    def __init__(self, name: str) -> None:
        super().__init__(name, to_bytes("1Gi"), directories=False, clock=LoopClock())
        self.is_there = name == "c"

    async def open(self) -> None:
        if not self.is_there:
            raise HostError("no such device")
        await super().open()


async def test_a_pool_that_is_not_open_is_not_available_until_it_is_or_is_removed() -> None:
    pools = {name: _Gone(name) for name in ("a", "b", "c")}
    openings, told = Openings(pools, clock=LoopClock()), list[dict[str, str]]()
    faults = PoolFaults(lambda: pools.values(), openings.why)
    openings.changed = lambda: told.append(faults.now())
    await openings.open()
    wanted = dict.fromkeys(("a", "b"), "is not open: no such device")
    assert faults.now() == told[-1] == wanted
    await faults.look()
    assert faults.now() == wanted, "one that is not open is not tried"
    del pools["b"]
    openings.forget("b")
    assert faults.now() == told[-1] == {"a": wanted["a"]}
    pools["a"].is_there = True
    await asyncio.sleep(PAUSE)
    await openings.retry_open()
    assert faults.now() == told[-1] == {}
    await openings.close()
    for pool in pools.values():
        await pool.close()
