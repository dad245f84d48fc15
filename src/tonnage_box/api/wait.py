"""Wait for a state of objects, by watch without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.client.client import Client

T = TypeVar("T", bound=KubeObject)


async def until(
    client: Client, kind: Kind[T], name: str, holds: Callable[[T], bool], *, namespace: str = "", seconds: float = 60.0
) -> T:
    """Wait for holds(object) and return the object; it need not exist yet. Raises: TimeoutError."""
    fields = f"metadata.name={name}"
    try:
        async with asyncio.timeout(seconds):
            while True:
                listing = await client.list(kind, namespace, fields=fields)
                for obj in listing.items:
                    if holds(obj):
                        return obj
                version = listing.resource_version
                async with client.watch(kind, namespace, fields=fields, resource_version=version) as batches:
                    async for batch in batches:
                        for event in batch:
                            if event.type in ("ADDED", "MODIFIED") and holds(event.object):
                                return event.object
    except TimeoutError:
        raise TimeoutError(f"{kind.kind} {name} was not there as wanted after {seconds:.0f} s") from None


async def until_gone(client: Client, kind: Kind[T], *, namespace: str = "", seconds: float = 60.0) -> None:
    """Wait until no object of the kind exists. Raises: TimeoutError after so many seconds."""
    left: set[str] = set()
    try:
        async with asyncio.timeout(seconds):
            while True:
                listing = await client.list(kind, namespace, tolerant=True)
                left = {o.key for o in listing.items} | {o.metadata.key for o in listing.unreadable}
                if not left:
                    return
                async with client.watch(kind, namespace, resource_version=listing.resource_version) as batches:
                    async for batch in batches:
                        for event in batch:
                            if event.type == "DELETED":
                                left.discard(event.object.key)
                            elif event.type != "BOOKMARK":
                                left.add(event.object.key)
                        if not left:
                            return
    except TimeoutError:
        raise TimeoutError(f"still there after {seconds:.0f} s: {kind.plural} {', '.join(sorted(left)[:5])}") from None
