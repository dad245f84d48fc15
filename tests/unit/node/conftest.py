"""A node: fake pool, real CSI socket, its agent, and somebody who sends claims to it as the scheduler does."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents
from tests.unit.node.served import ONE, Mounted, ServedNode

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.node import reload
from tonnage.node.process import NodeProcess
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing import apiserver
from tonnage_box.testing.node import FakeNode, MakeNode, fake_node
from tonnage_box.testing.objects import MakeClass, MakePod, Objects


@pytest.fixture
async def make_node(
    kube: Client, make_class: MakeClass, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MakeNode]:
    """make_node(size="30716Mi", ...): see fake_node(); all end with the test."""
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await make_class("late", default=True)
    async with AsyncExitStack() as stack:

        async def make(size: str = "30716Mi", **options: Any) -> FakeNode:
            return await stack.enter_async_context(fake_node(kube, tmp_path_factory.mktemp("n"), size, **options))

        yield make


@pytest.fixture
def scratch_pod(objects: Objects) -> MakePod:
    """See Objects.scratch_pod()."""
    return objects.scratch_pod


@pytest.fixture
def all_events(kube: Client) -> AllEvents:
    """Events as (object, reason, message)."""

    async def read() -> list[tuple[str, str, str]]:
        found = (await kube.list(kinds.EVENTS)).items
        return [(e.involved_object.name, e.reason, e.message) for e in found]

    return read


@pytest.fixture
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Mounted:
    """A ConfigMap with one pool; paths are short, for sockets."""
    folder = tmp_path_factory.mktemp("c")
    (folder / "config").mkdir()
    (folder / "k" / "plugins_registry").mkdir(parents=True)
    made = Mounted(folder / "config", folder / "k")
    made.put(pools=[ONE])
    return made


@pytest.fixture
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody writes slowly here; the level of the log is put back."""
    monkeypatch.setattr(reload, "SETTLE", 0.01)
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture
async def node(mounted: Mounted, settled_at_once: None, api_server: ApiServer) -> AsyncIterator[ServedNode]:
    """A node over it."""
    kube, client = apiserver.client(api_server), apiserver.client(api_server)
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    uid = (await kube.create(kinds.NODES, {"metadata": {"name": "node-1"}})).metadata.uid
    for name in ("one", "two"):
        body = {"metadata": {"name": name}, "provisioner": names.DRIVER, "parameters": {"pool": name}}
        await kube.create(kinds.STORAGE_CLASSES, body)
    process = NodeProcess(mounted.read(), client, live=(mounted.file, mounted.read), clock=RealClock())
    await process.start()
    yield ServedNode(process, mounted, kube, uid)
    await process.stop()
