"""The controller's shell: every change is looked at, failures come again, nothing runs twice at once."""

from __future__ import annotations

import asyncio

import pytest

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import ApiConflictError, BusyError, InvalidError
from tonnage.kubernetes.api.core import ConfigMap
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, NODES
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.client.busy import BusyWatch
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Controller, Reconciler, settle
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.simulate.virtual_time import VirtualLoop
from tonnage_box.testing.clock import run_virtual


@pytest.mark.parametrize("deferred", [False, True])
async def test_keys_of_changes_are_reconciled(server: ApiServer, *, deferred: bool) -> None:
    client = Client(server.transport())
    informers = Informers(client)
    informer = informers.of(CONFIG_MAPS, namespace="default")
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def reconcile(key: str) -> None:
        seen.put_nowait(key)

    controller: Controller[str] = Controller("test", reconcile)
    controller.watch(informer, lambda old, new: [(new or old).key], deferred=deferred)  # type: ignore[union-attr]
    informers.start()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.run())
        await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, "default")
        assert await seen.get() == "default/a"
        await client.delete(CONFIG_MAPS, "a", "default")
        assert await seen.get() == "default/a"
        running.cancel()
    await informers.close()


def test_failures_come_again_ever_later_and_results_set_the_next_look() -> None:
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def reconcile(key: str) -> float | None:
            times.append(loop.time())
            if len(times) == 1:
                raise ApiConflictError("somebody was first")
            if len(times) == 2:
                raise InvalidError("no")
            if len(times) == 3:
                return 100.0
            return None

        controller: Controller[str] = Controller("test", reconcile, backoff=Backoff(initial=1.0))
        controller.enqueue("k", after=10.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await controller.run()

    run_virtual(main())

    assert times == [10.0, 11.0, 13.0, 113.0]


async def test_a_key_never_runs_twice_at_once_and_loses_no_change() -> None:
    running, most, runs = 0, 0, 0

    async def reconcile(key: str) -> None:
        nonlocal running, most, runs
        running, runs = running + 1, runs + 1
        most = max(most, running)
        await asyncio.sleep(0)
        controller.enqueue(key) if runs < 5 else None
        await asyncio.sleep(0)
        running -= 1

    controller: Controller[str] = Controller("test", reconcile, workers=4)
    controller.enqueue("k")
    task = asyncio.ensure_future(controller.run())
    async with asyncio.timeout(60):
        while runs < 5 or not controller.queue.idle:
            await asyncio.sleep(0)
    task.cancel()

    assert (most, runs) == (1, 5)


async def test_a_second_run_goes_on_where_the_first_was_cancelled() -> None:
    begun: list[str] = []
    free = asyncio.Event()

    async def reconcile(key: str) -> None:
        begun.append(key)
        await free.wait()

    controller: Controller[str] = Controller("test", reconcile)
    controller.enqueue("k")
    first = asyncio.ensure_future(controller.run())
    while begun != ["k"]:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    second = asyncio.ensure_future(controller.run())
    free.set()
    async with asyncio.timeout(60):
        while not controller.queue.idle:
            await asyncio.sleep(0)
    second.cancel()

    assert begun == ["k", "k"]


async def test_a_reconciler_works_off_what_its_watches_enqueue(server: ApiServer) -> None:
    kube = Client(server.transport())
    informers = Informers(kube)
    seen: list[str] = []
    done = asyncio.Event()

    class Noting(Reconciler[str]):
        """Notes the names of nodes."""

        def __init__(self) -> None:
            super().__init__("noting")
            self.watch(informers.of(NODES), lambda old, new: (new.key,) if new is not None else ())

        async def reconcile(self, key: str) -> None:
            seen.append(key)
            done.set()

    informers.start()
    working = asyncio.ensure_future(Noting().run())
    await kube.create(NODES, {"metadata": {"name": "n1"}})
    await asyncio.wait_for(done.wait(), 60)
    working.cancel()
    await asyncio.wait([working])
    await informers.close()
    assert seen == ["n1"]


async def test_steps_that_are_undone_again_and_again_end() -> None:
    steps = 0

    async def undone(obj: ConfigMap) -> ConfigMap:
        nonlocal steps
        steps += 1
        return obj

    async def last(obj: ConfigMap) -> None:
        return None

    thing = ConfigMap(metadata=ObjectMeta(name="a", namespace="default"))
    with pytest.raises(BusyError, match="default/a: not settled after 8 writes"):
        await settle(thing, undone)
    assert steps == 8
    await settle(thing, last)
    await settle(None, undone)


def test_a_key_that_kept_the_loop_rests_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        monkeypatch.setattr("tonnage.kubernetes.client.controller._busy", BusyWatch(loop.time))

        async def reconcile(key: str) -> None:
            seen.append((key, loop.time()))
            controller.enqueue("quick") if key == "slow" else None
            if key == "slow" and len(seen) < 5:
                controller.enqueue("slow")
                loop.advance(1.0 if len(seen) == 1 else 60.0)

        controller: Controller[str] = Controller("rests", reconcile)
        controller.enqueue("slow")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await controller.run()

    run_virtual(main())
    assert seen == [("slow", 0.0), ("quick", 1.0), ("slow", 10.0), ("quick", 70.0), ("slow", 80.0), ("quick", 80.0)]
