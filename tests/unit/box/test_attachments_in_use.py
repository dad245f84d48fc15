"""A volume is detached by the controller while the kubelet mounts it: never both, however late calls and watches are.

Each request and answer, and each change that a watch shows, is late by a random time, on a virtual clock; some requests
and answers are lost. Pods come and go; whoever answers for the driver attaches and detaches after each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import examples

from tonnage.base.errors import ApiNotFoundError, UnavailableError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ATTACHMENTS, NODES, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.attach_detach import AttachDetach
from tonnage_box.kubelet.volumes.attachments import Attachments
from tonnage_box.kubelet.volumes.csi_volumes import MountError
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing import apiserver
from tonnage_box.testing.clock import run_virtual
from tonnage_box.testing.objects import Objects

DRIVER, HANDLE, NODE = "net.example.com", "h", "n"
ATTACHMENT = names.attachment_name(HANDLE, DRIVER, NODE)
UNIQUE = names.attached_volume(DRIVER, HANDLE)
SOON, LONG, LOST = 0.1, 60.0, 0.03


@dataclass
class _Late:
    """A transport whose requests, answers and watches are late, and some lost."""

    inner: Any
    random: Random

    async def request(self, request: Any) -> Any:
        await self._wait()
        self._lose()
        answer = await self.inner.request(request)
        await self._wait()
        self._lose()
        return answer

    def _lose(self) -> None:
        if self.random.random() < LOST:
            raise UnavailableError("connection lost")

    @asynccontextmanager
    async def stream(self, request: Any) -> AsyncIterator[Any]:
        async with self.inner.stream(request) as chunks:
            yield self._late(chunks)

    async def _late(self, chunks: Any) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            await self._wait()
            yield chunk

    async def _wait(self) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.01, SOON)))

    async def close(self) -> None:
        await self.inner.close()


@dataclass
class _Node:
    """The kubelet's part: mounts for a pod as soon as it may, and unmounts when the pod is gone."""

    client: Client
    attached: Attachments
    mounted: set[str] = field(default_factory=set)
    waits: int = 0
    rejected: int = 0

    async def use(self, uid: str, seconds: float) -> None:
        """One pod: wait, mount, stay, unmount."""
        while True:
            self.waits += 1
            try:
                await self.attached.wait(uid, "v", DRIVER, HANDLE)
            except (MountError, UnavailableError):
                self.rejected += 1
                await asyncio.sleep(SOON)
                continue
            break
        attachment = await self._attachment()
        self.mounted.add(uid)
        await asyncio.sleep(seconds)
        assert await self._attachment() == attachment, "it was detached, and attached again"
        self.mounted.discard(uid)
        self.attached.left(uid)

    async def _attachment(self) -> str:
        """The uid of the attachment of now."""
        found = await self.client.get(ATTACHMENTS, ATTACHMENT)
        assert found.status.get("attached")
        assert not found.metadata.deleting
        return found.metadata.uid


async def _answer(kube: Client) -> None:
    """The driver's attacher."""
    while True:
        for one in (await kube.list(ATTACHMENTS)).items:
            with suppress(ApiNotFoundError):
                if not one.attached:
                    await kube.patch(
                        ATTACHMENTS, one.metadata.name, {"status": {"attached": True}}, subresource="status"
                    )
        await asyncio.sleep(0.005)


async def _story(random: Random, pods: list[tuple[float, float]]) -> _Node:
    """pods: seconds before each comes, and for which it uses the volume."""
    async with apiserver.api_server() as server:
        kube = apiserver.client(server)
        objects = Objects(kube)
        await kube.create(NODES, {"metadata": {"name": NODE}})
        ready = [{"type": "Ready", "status": "True"}]
        await kube.patch(NODES, NODE, {"status": {"conditions": ready}}, subresource="status")
        await objects.claim("c", volumeName="v")
        ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"}
        await objects.volume("v", claimRef=ref, csi={"driver": DRIVER, "volumeHandle": HANDLE})
        seen = Client(_Late(server.transport(apiserver.ADMINISTRATOR), random))
        informers = Informers(seen)
        controller = AttachDetach(seen, informers, EventRecorder(seen, "test"), clock=LoopClock())
        own = Client(_Late(server.transport(apiserver.ADMINISTRATOR), random))
        node = _Node(kube, Attachments(own, NODE))
        informers.start()
        work = [asyncio.ensure_future(one) for one in (controller.run(), node.attached.run(), _answer(kube))]
        try:
            async with asyncio.timeout(LONG):
                await _pods(objects, kube, node, pods)
                while (await kube.list(ATTACHMENTS)).items:
                    await asyncio.sleep(SOON)
                while (status := (await kube.get(NODES, NODE)).status).volumes_attached or status.volumes_in_use:
                    await asyncio.sleep(SOON)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await asyncio.sleep(LONG)  # what was under way
            await informers.close()
        return node


async def _pods(objects: Objects, kube: Client, node: _Node, pods: list[tuple[float, float]]) -> None:
    async with asyncio.TaskGroup() as lives:
        for number, (before, seconds) in enumerate(pods):
            await asyncio.sleep(before)
            lives.create_task(_life(objects, kube, node, f"p{number}", seconds))


async def _life(objects: Objects, kube: Client, node: _Node, name: str, seconds: float) -> None:
    pod = await objects.pod(name, nodeName=NODE, claims=["c"])
    await node.use(pod.metadata.uid, seconds)
    await kube.delete(PODS, name, "default", grace_seconds=0)


TIMES = st.sampled_from((0.0, 0.003, 0.02, 0.05, 0.1, 0.2, 0.5))


@pytest.mark.slow
@examples(300, deadline=None)
@example(410316693, [(0.0, 0.0), (0.5, 0.0), (0.02, 0.0)])  # the Node's own change has to be seen, too
@given(st.integers(0, 2**32), st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=6))
def test_a_volume_is_never_detached_while_a_pod_uses_it(seed: int, pods: list[tuple[float, float]]) -> None:
    node = run_virtual(_story(Random(seed), pods))
    assert node.waits >= len(pods)
    assert not node.mounted
