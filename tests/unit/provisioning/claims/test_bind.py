"""Binder, agents and deletions against one another, with requests that take turns in random order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import cycle
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from tonnage.base.errors import ApiConflictError, ApiNotFoundError, PreconditionError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage.provisioning.claims.bind import bind, find, is_complete, is_sent, pause, reschedules_of, send
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.testing.objects import MakeClaim, MakeClass

TURNS = st.lists(st.integers(0, 4), min_size=1, max_size=12)


async def test_binding_is_four_writes_and_then_none(kube: Client, make_claim: MakeClaim) -> None:
    claim = await make_claim("data", "1Gi", storageClassName="late")
    body = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
    csi = {"driver": "d", "volumeHandle": "v"}
    volume = await kube.create(VOLUMES, {"metadata": {"name": "pv"}, "spec": {**body, "csi": csi}})
    assert not is_complete(claim, volume)
    bound = await bind(kube, claim, volume)
    assert is_complete(*bound)
    assert await bind(kube, claim, volume) == bound, "as stale objects show it, too"
    assert (await find(kube, CLAIMS, "data", "default"), await find(kube, CLAIMS, "no", "default")) == (bound[0], None)


async def test_selected_node_as_the_scheduler_writes_it(
    kube: Client, make_claim: MakeClaim, make_class: MakeClass
) -> None:
    sent = await send(kube, await make_claim("data", "1Gi"), "node-1", await make_class("late"))
    assert is_sent(sent)
    assert sent.metadata.annotations[names.SELECTED_NODE] == "node-1"
    assert sent.metadata.labels == {names.NODE_LABEL: "node-1"}
    assert (reschedules_of(sent), pause(sent)) == (0, 0.0)
    often = await make_claim("often", "1Gi", annotations={names.RESCHEDULES: "3"})
    assert (reschedules_of(often), pause(often), pause(often, longest=1.5)) == (3, 2.0, 1.5)
    assert reschedules_of(await make_claim("bad", "1Gi", annotations={names.RESCHEDULES: "many"})) == 0


class Slow:
    """A transport whose requests wait for some turns of the loop before and after they are answered."""

    def __init__(self, inner: Transport, turns: Iterator[int]) -> None:
        self._inner, self._turns = inner, turns

    async def request(self, request: Request) -> Response:
        await self._wait()
        response = await self._inner.request(request)
        await self._wait()
        return response

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()

    async def _wait(self) -> None:
        for _ in range(next(self._turns)):
            await asyncio.sleep(0)


class Stage(NamedTuple):
    """A server with a binder that never holds back; `slow` is a client whose requests take turns."""

    kube: Client
    slow: Client
    binder: Binder

    async def claim(self, name: str, **spec: Any) -> Any:
        body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
        return await self.kube.create(CLAIMS, {"metadata": {"name": name}, "spec": body}, "default")

    async def volume(self, name: str, claim: Any = None, **spec: Any) -> Any:
        notes = {names.PROVISIONED_BY: names.DRIVER} if claim else {}
        body = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": names.DRIVER, "volumeHandle": name},
            "persistentVolumeReclaimPolicy": "Delete" if claim else "Retain",
            **spec,
        }
        if claim:
            meta = claim.metadata
            ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": meta.name}
            body["claimRef"] = ref | {"uid": meta.uid}
        return await self.kube.create(VOLUMES, {"metadata": {"name": name, "annotations": notes}, "spec": body})

    async def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        claims, volumes = (await self.kube.list(CLAIMS)).items, (await self.kube.list(VOLUMES)).items
        return {c.metadata.name: c for c in claims}, {v.metadata.name: v for v in volumes}

    async def rest(self) -> None:
        """Wait until the binder has nothing left to do for what the server holds."""
        quiet = 0
        while quiet < 20:
            quiet = quiet + 1 if self.binder._controller.queue.idle else 0
            await asyncio.sleep(0.0002)


@asynccontextmanager
async def stage(turns: list[int]) -> AsyncIterator[Stage]:
    server = ApiServer(Store(extractor()))
    await server.start()
    kube = Client(server.transport("system:admin"))
    slow = Client(Slow(kube.transport, cycle(turns)))
    informers = Informers(kube)
    binder = Binder(slow, informers, EventRecorder(kube, "test"), grace=0.0, quiet=0.0)
    informers.start()
    task = asyncio.ensure_future(binder.run())
    late = {"metadata": {"name": "late"}, "provisioner": names.DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    await kube.create(STORAGE_CLASSES, late)
    try:
        yield Stage(kube, slow, binder)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await informers.close()
        await server.stop()


@examples(12, deadline=None)
@given(TURNS, st.integers(0, 3))
def test_agents_and_binder_agree(turns: list[int], agents: int) -> None:
    async def check() -> None:
        async with stage(turns) as on:
            claim = await on.claim("c", storageClassName="late")
            volume = await on.volume("v", claim, storageClassName="late")
            await asyncio.gather(*(bind(on.slow, claim, volume) for _ in range(agents)))
            await on.rest()
            claims, volumes = await on.state()
            assert is_complete(claims["c"], volumes["v"])

    asyncio.run(check())


@examples(12, deadline=None)
@given(TURNS, st.integers(1, 4), st.integers(1, 4))
def test_no_volume_has_two_claims(turns: list[int], claims: int, volumes: int) -> None:
    async def check() -> None:
        async with stage(turns) as on:
            async with asyncio.TaskGroup() as tasks:
                for number in range(max(claims, volumes)):
                    if number < claims:
                        tasks.create_task(on.claim(f"c{number}", storageClassName=""))
                    if number < volumes:
                        tasks.create_task(on.volume(f"v{number}"))
            await on.rest()
            found, made = await on.state()
            bound = [c for c in found.values() if c.spec.volume_name]
            assert len(bound) == min(claims, volumes)
            assert all(is_complete(c, made[c.spec.volume_name]) for c in bound)
            assert len({c.spec.volume_name for c in bound}) == len(bound)

    asyncio.run(check())


@examples(12, deadline=None)
@given(TURNS, st.integers(0, 12))
def test_claim_that_goes_while_it_is_bound_leaves_a_released_volume(turns: list[int], when: int) -> None:
    async def check() -> None:
        async with stage(turns) as on:
            claim = await on.claim("c", storageClassName="late")
            volume = await on.volume("v", claim, storageClassName="late")

            async def agent() -> None:
                with suppress(PreconditionError, ApiConflictError, ApiNotFoundError):
                    await bind(on.slow, claim, volume)

            async def user() -> None:
                for _ in range(when):
                    await asyncio.sleep(0)
                await on.kube.delete(CLAIMS, "c", "default")
                await on.kube.patch(CLAIMS, "c", {"metadata": {"finalizers": None}}, "default")

            await asyncio.gather(agent(), user())
            await on.rest()
            claims, volumes = await on.state()
            assert claims == {}
            assert volumes["v"].status.phase == "Released"

    asyncio.run(check())


@examples(12, deadline=None)
@given(TURNS, st.integers(0, 30))
def test_binder_ends_what_a_killed_agent_began(turns: list[int], lived: int) -> None:
    async def check() -> None:
        async with stage(turns) as on:
            claim = await on.claim("c", storageClassName="late")
            volume = await on.volume("v", claim, storageClassName="late")
            agent = asyncio.ensure_future(bind(on.slow, claim, volume))
            for _ in range(lived):
                await asyncio.sleep(0)
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)
            await on.rest()
            claims, volumes = await on.state()
            assert is_complete(claims["c"], volumes["v"])

    asyncio.run(check())
