"""A node: fake pool, real CSI socket, its agent, and somebody who sends claims to it as the scheduler does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tonnage.api import kinds, names
from tonnage.kube.client import Client
from tonnage.testing.clock import VirtualPolicy
from tonnage.testing.node import FakeNode, MakeNode, fake_node
from tonnage.testing.objects import MakeClass, MakePod, Objects

AllEvents = Callable[[], Awaitable[list[tuple[str, str, str]]]]


@pytest.fixture
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Virtual time, for tests that are marked so."""
    return VirtualPolicy() if request.node.get_closest_marker("virtual_time") else asyncio.DefaultEventLoopPolicy()


for _short, _name in {"send": "select", "bound": "is_bound", "shows": "publishes", "gone": "is_gone"}.items():
    setattr(FakeNode, _short, getattr(FakeNode, _name))
FakeNode.kube = property(  # type: ignore[attr-defined]
    lambda node: node.client, lambda node, client: setattr(node, "client", client)
)


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
