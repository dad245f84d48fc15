"""The wall clock of an agent's machine is set an hour ahead or back while it works, on a real control plane.

A machine's clock is everybody's, so the agent runs in this process, over a clock that jumps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agents import Nodes
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import free

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.kubernetes.client.lease import LeaderElection
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.node_driver import NodeDriver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE = "faults-clock"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
HOUR, GIB = 3600.0, 2**30


class Jumping(RealClock):
    """A wall clock that somebody sets; what counts seconds goes on, as the kernel's does."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        """See Clock."""
        return super().time() + self.ahead


@pytest.fixture(scope="module")
def nodes(installed: ControlPlane) -> Iterator[Nodes]:
    """A node without a kubelet."""
    installed.kubectl("create", "namespace", NAMESPACE)
    made = Nodes(installed, "clock", NAMESPACE)
    made.add(1)
    yield made
    made.remove()
    installed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@asynccontextmanager
async def agent(nodes: Nodes, folder: Path, pool: FakePool, clock: Jumping) -> AsyncIterator[NodeAgent]:
    """The node's agent, over that clock."""
    name = nodes.name(1)
    driver = NodeDriver([pool], node_name=name, kubelet=folder, sockets=folder, clock=clock)
    await driver.start()
    transport = HttpTransport(kubeconfig.load(nodes.plane.kubeconfig))
    uid = nodes.plane.get("namespace", "kube-system")["metadata"]["uid"]
    made = NodeAgent(
        Client(transport),
        AgentConfig(
            name, scope="label", capacity="exact", endpoints=tuple(driver.endpoints), cluster_uid=uid, poll=0,
            sweep_every=0,
        ),
        clock=clock,
    )  # fmt: skip
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        await made.stop()
        await asyncio.gather(task, return_exceptions=True)
        await driver.stop()
        await transport.close()


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_an_agent_goes_on_when_its_clock_jumps(nodes: Nodes, tmp_path: Path, ahead: float) -> None:
    plane, clock, node = nodes.plane, Jumping(), nodes.name(1)
    pool = FakePool("scratch", 10 * GIB, directories=False, clock=clock)

    async def until(what: str, holds: Callable[[], bool]) -> None:
        await asyncio.to_thread(plane.until, what, holds)

    def claim(name: str) -> Any:
        return plane.send("GET", f"{CLAIMS}/{name}").body

    async def serve(name: str) -> None:
        await asyncio.to_thread(nodes.claim, name, node)
        await until(f"{name} is bound", lambda: claim(name)["status"].get("phase") == "Bound")

    async def reject(name: str) -> None:
        """A claim that does not fit goes back to the scheduler at once, and is counted and told."""
        await asyncio.to_thread(nodes.claim, name, node, resources={"requests": {"storage": "50Gi"}})
        await until(f"{name} goes back", lambda: names.RESCHEDULES in claim(name)["metadata"]["annotations"])
        notes = claim(name)["metadata"]["annotations"]
        assert (notes[names.RESCHEDULES], notes.get(names.SELECTED_NODE)) == ("1", None)
        fields = f"--field-selector=involvedObject.name={name},reason=Rescheduled"
        await until(f"{name} is told", lambda: len(plane.get("-n", NAMESPACE, "events", fields)["items"]) == 1)

    async with agent(nodes, tmp_path, pool, clock) as served:
        await serve("before")
        await until("published", lambda: free(plane, node) == 9 * GIB)
        clock.ahead = ahead
        await serve("after")
        await reject(f"large-{ahead:.0f}")
        await until("published", lambda: free(plane, node) == 8 * GIB)
        driver = served.drivers.get(names.DRIVER)
        assert driver is not None
        found = await served.sweep.sweep(driver)
        assert (found.removed, found.asked, found.orphans) == ([], [], [])
        assert len(await pool.list()) == 2
        clock.ahead = 0.0
        await asyncio.to_thread(plane.kubectl, "-n", NAMESPACE, "delete", "pvc", "--all")
        await until("all room is back", lambda: free(plane, node) == 10 * GIB)
        assert await pool.list() == []


async def test_a_leader_whose_clock_jumps_stays_the_leader(nodes: Nodes) -> None:
    """Both of them tell time by seconds that they have counted."""
    clock, led = Jumping(), list[str]()
    transport = HttpTransport(kubeconfig.load(nodes.plane.kubeconfig))

    def stand(name: str) -> LeaderElection:
        return LeaderElection(Client(transport), NAMESPACE, "lease", name, duration=6.0, renew_every=1.0, clock=clock)

    async def lead(name: str) -> None:
        led.append(name)
        await asyncio.Event().wait()

    first = asyncio.create_task(stand("first").run(lambda: lead("first")))
    async with asyncio.timeout(60):
        while led != ["first"]:
            await asyncio.sleep(0.05)
    second = asyncio.create_task(stand("second").run(lambda: lead("second")))
    try:
        for clock.ahead in (HOUR, -HOUR, 0.0):
            await asyncio.sleep(4.0)
        assert led == ["first"]
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        async with asyncio.timeout(60):
            while led != ["first", "second"]:
                await asyncio.sleep(0.05)
    finally:
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await transport.close()
