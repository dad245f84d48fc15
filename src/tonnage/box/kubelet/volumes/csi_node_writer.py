"""CSI node info of a registered driver: CSINode entry, Node annotation and topology labels.

Source: pkg/volume/csi/nodeinfomanager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.kinds import CSI_NODES, NODES
from tonnage.api.meta import to_builtins
from tonnage.api.storage import CSINode, CSINodeDriver
from tonnage.csi.client.types import NodeInfo
from tonnage.errors import ApiAlreadyExistsError, ApiConflictError, ApiNotFoundError, PreconditionError
from tonnage.kube.client import Client

_MAX_COUNT = 2**31 - 1
_TRIES = 10
R = TypeVar("R")


class NodeInfoWriter:
    """Writes both objects of one node, one driver at a time. All methods are idempotent."""

    def __init__(self, client: Client, node_name: str) -> None:
        self._client = client
        self._node = node_name
        self._lock = asyncio.Lock()

    async def create_csinode(self, node: Node) -> None:
        """Make the CSINode if it is missing, and again if it belongs to an earlier Node of that name."""
        async with self._lock:
            try:
                found = await self._client.get(CSI_NODES, self._node)
            except ApiNotFoundError:
                await self._create(node)
                return
            if node.metadata.uid not in {owner.uid for owner in found.metadata.owner_references}:
                await self._client.patch(CSI_NODES, self._node, {"metadata": {"ownerReferences": _owner(node)}})

    async def add(self, driver: str, info: NodeInfo) -> None:
        """Enter a driver. Raises PreconditionError when one of its topology labels is there with another value."""
        async with self._lock:
            node = await _repeat(lambda: self._patch_node(driver, info))
            await _repeat(lambda: self._patch_csinode(driver, _entry(driver, info), node))

    async def remove(self, driver: str) -> None:
        """Take a driver out again; its topology labels stay, as in Kubernetes."""
        async with self._lock:
            try:
                await _repeat(lambda: self._patch_csinode(driver, None, None))
                await _repeat(lambda: self._patch_node(driver, None))
            except ApiNotFoundError:
                return  # the node is deleted, and its entries with it

    async def _patch_node(self, driver: str, info: NodeInfo | None) -> Node:
        node = await self._client.get(NODES, self._node)
        labels = {} if info is None else _new_labels(node, info)
        ids = _node_ids(node)
        wanted = {name: i for name, i in ids.items() if name != driver}
        if info is not None:
            wanted[driver] = info.node_id
        if wanted == ids and not labels:
            return node
        text = msgspec.json.encode(wanted, order="sorted").decode() if wanted else None
        metadata: dict[str, Any] = {"annotations": {names.NODE_ID_ANNOTATION: text}}
        if labels:
            metadata["labels"] = labels
        version = node.metadata.resource_version
        return await self._client.patch(NODES, self._node, {"metadata": metadata}, resource_version=version)

    async def _patch_csinode(self, driver: str, entry: CSINodeDriver | None, node: Node | None) -> None:
        try:
            found = await self._client.get(CSI_NODES, self._node)
        except ApiNotFoundError:
            if node is None:
                return
            found = await self._create(node)
        if found.driver(driver) == entry:
            return
        drivers = [d for d in found.spec.drivers if d.name != driver] + ([entry] if entry else [])
        body = {"spec": {"drivers": [_plain(d) for d in drivers]}}
        await self._client.patch(CSI_NODES, self._node, body, resource_version=found.metadata.resource_version)

    async def _create(self, node: Node) -> CSINode:
        body = {"metadata": {"name": self._node, "ownerReferences": _owner(node)}, "spec": {"drivers": []}}
        try:
            return await self._client.create(CSI_NODES, body)
        except ApiAlreadyExistsError:
            return await self._client.get(CSI_NODES, self._node)


def _owner(node: Node) -> list[dict[str, str]]:
    return [{"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}]


def _entry(driver: str, info: NodeInfo) -> CSINodeDriver:
    entry: dict[str, Any] = {"name": driver, "nodeID": info.node_id, "topologyKeys": sorted(info.topology)}
    if info.max_volumes > 0:
        entry["allocatable"] = {"count": min(info.max_volumes, _MAX_COUNT)}
    return msgspec.convert(entry, CSINodeDriver)


def _plain(entry: CSINodeDriver) -> dict[str, Any]:
    return {"topologyKeys": None, **to_builtins(entry)}


def _node_ids(node: Node) -> dict[str, str]:
    text = node.metadata.annotations.get(names.NODE_ID_ANNOTATION, "")
    try:
        return msgspec.json.decode(text, type=dict[str, str]) if text else {}
    except msgspec.MsgspecError:
        return {}


def _new_labels(node: Node, info: NodeInfo) -> dict[str, str]:
    """The segments that are not yet labels."""
    labels = node.metadata.labels
    for key, value in info.topology.items():
        if labels.get(key, value) != value:
            raise PreconditionError(
                f'detected topology value collision: driver reported "{key}":"{value}" '
                f'but existing label is "{key}":"{labels[key]}"'
            )
    return {key: value for key, value in info.topology.items() if key not in labels}


async def _repeat(write: Callable[[], Awaitable[R]]) -> R:
    """Read and write again while others write in between."""
    for _ in range(_TRIES):
        try:
            return await write()
        except ApiConflictError:
            continue
    return await write()
