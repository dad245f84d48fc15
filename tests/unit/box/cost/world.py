"""A box's API server, controllers and scheduler in this process, over objects that others meet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.unit.box.cost.examples import LABELS

from tonnage.base.aio.tasks import Background, supervise
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.transport import JSON, MERGE_PATCH, Request, Response
from tonnage.scheduler.scheduler import Scheduler
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.control_plane import control_plane
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing import apiserver

Obj = dict[str, Any]
SPACE = "/api/v1/namespaces/default"
MET = 300
"""Of each kind that objects meet: nodes, pods, claims, PersistentVolumes."""
_READY = {"type": "Ready", "status": "True"}
_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_QUIET = 3.0
"""Virtual seconds after which controllers have done what they will."""


class World:
    """Requests to the server."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self._transport = server.transport()

    async def ask(
        self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None, kind: str = JSON
    ) -> Response:
        """The answer to a request."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await self._transport.request(Request(method, path, query or {}, data, kind))

    async def make(self, path: str, bodies: Iterable[Obj]) -> None:
        """Create objects."""
        answers = await asyncio.gather(*(self.ask("POST", path, body) for body in bodies))
        bad = [answer for answer in answers if answer.status != 201]
        assert not bad, bad[0].body

    async def fill(self) -> None:
        """Make all objects that others meet."""
        head = {"metadata": {"labels": LABELS}}
        some = range(MET)
        for name, mode in (("late", "WaitForFirstConsumer"), ("now", "Immediate")):
            body = {"metadata": {"name": name}, "provisioner": "csi.tonnage.dev", "volumeBindingMode": mode}
            await self.make("/apis/storage.k8s.io/v1/storageclasses", [body])
        await self.make("/api/v1/nodes", [_node(number) for number in some])
        await self.make(f"{SPACE}/pods", [_pod(f"p{n}", nodeName=f"n{n}") for n in some])
        await self.make(f"{SPACE}/pods", [_pod(f"w{n}", nodeSelector={"no": "node"}) for n in some])
        claims = ((f"late{n}", "late") for n in some)
        await self.make(
            f"{SPACE}/persistentvolumeclaims",
            [_named(name, **head["metadata"]) | {"spec": _CLAIM | {"storageClassName": c}} for name, c in claims],
        )
        await self.make("/api/v1/persistentvolumes", [_volume(n) for n in some])
        await self.settle()

    async def settle(self) -> None:
        """Wait until the controllers have done what they will."""
        await asyncio.sleep(_QUIET)

    async def stir(self) -> None:
        """Change what meets other objects: a pod with a claim comes and goes, a pod gets ready, a node a label."""
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": "late0"}}
        await self.make(f"{SPACE}/pods", [_pod("stir", volumes=[volume])])
        ready = {"status": {"phase": "Running", "conditions": [_READY]}}
        await self.ask("PATCH", f"{SPACE}/pods/p0/status", ready, kind=MERGE_PATCH)
        await self.ask("PATCH", "/api/v1/nodes/n0", {"metadata": {"labels": {"a": "b"}}}, kind=MERGE_PATCH)
        await self.settle()
        await self.ask("PATCH", "/api/v1/nodes/n0", {"metadata": {"labels": {"a": None}}}, kind=MERGE_PATCH)
        await self.ask("PATCH", f"{SPACE}/pods/p0/status", {"status": {"conditions": []}}, kind=MERGE_PATCH)
        await self.ask("DELETE", f"{SPACE}/pods/stir", query={"gracePeriodSeconds": "0"})
        await self.settle()

    async def remove(self, path: str) -> None:
        """Delete an object, whoever holds it."""
        await self.ask("DELETE", path, query={"gracePeriodSeconds": "0", "propagationPolicy": "Background"})
        await self.settle()
        for _ in range(5):
            if (await self.ask("GET", path)).status == 404:
                return
            await self.ask("PATCH", path, {"metadata": {"finalizers": None}}, kind=MERGE_PATCH)
            if "/namespaces/" in path and path.count("/") == 4:
                name = path.rpartition("/")[2]
                await self.ask("PUT", f"{path}/finalize", {"metadata": {"name": name}, "spec": {"finalizers": []}})
            await self.settle()
        raise AssertionError(f"{path} stays")


def _named(name: str, **more: Any) -> Obj:
    return {"metadata": {"name": name} | more}


def _pod(name: str, **spec: Any) -> Obj:
    return _named(name, labels=LABELS) | {"spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def _node(number: int) -> Obj:
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "500"}
    labels = {"zone": f"z{number % 3}", "kubernetes.io/hostname": f"n{number}"}
    status = {"conditions": [_READY], "allocatable": amounts, "capacity": amounts}
    taint = {"key": "t", "effect": "PreferNoSchedule"}
    return _named(f"n{number}", labels=labels) | {"spec": {"taints": [taint]}, "status": status}


def _volume(number: int) -> Obj:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "storageClassName": "manual",
        "csi": {"driver": "csi.tonnage.dev", "volumeHandle": f"h{number}"},
    }
    return _named(f"v{number}", labels=LABELS) | {"spec": spec}


class _LoopClock(LoopClock):
    """The same for threads."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time()


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """A filled world, in virtual time."""
    clock, tasks = _LoopClock(), Background("cost")
    async with apiserver.api_server(clock) as server:
        client = apiserver.client(server)
        async with apiserver.informers(client) as informers:
            events = EventRecorder(client, "cost")
            scheduler = Scheduler(client, informers, events, clock=clock)
            parts = control_plane(client, informers, lambda component: events, clock=clock, scheduler=scheduler)
            for name, part in parts.items():
                if name != "node health":  # no kubelet runs here
                    tasks.start(supervise(name, part.run))
            await informers.wait_synced()
            found = World(server)
            await found.fill()
            try:
                yield found
            finally:
                await tasks.close()
