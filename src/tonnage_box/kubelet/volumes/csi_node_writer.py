"""CSI node info of a registered driver: CSINode entry, Node annotation and topology labels.

Source: pkg/volume/csi/nodeinfomanager.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from tonnage.base.errors import ApiAlreadyExistsError, ApiNotFoundError, PreconditionError
from tonnage.csi.client.types import NodeInfo
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import CSI_NODES, NODES
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.api.storage import CSINode, CSINodeDriver
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.bind import change, find

_MAX_COUNT = 2**31 - 1


class NodeInfoWriter:
    """Writes both objects of one node, one driver at a time. All methods are idempotent."""

    def __init__(self, client: Client, node_name: str) -> None:
        self._client = client
        self._node = node_name
        self._lock = asyncio.Lock()

    async def create_csinode(self, node: Node) -> None:
        """Make the CSINode if it is missing, and again if it belongs to an earlier Node of that name."""
        async with self._lock:
            found = await find(self._client, CSI_NODES, self._node) or await self._create(node)
            if node.metadata.uid not in {owner.uid for owner in found.metadata.owner_references}:
                await self._client.patch(CSI_NODES, self._node, {"metadata": {"ownerReferences": _owner(node)}})

    async def add(self, driver: str, info: NodeInfo) -> None:
        """Enter a driver. Raises: PreconditionError when one of its topology labels is there with another value."""
        async with self._lock:
            node = await self._annotate(driver, info)
            found = await find(self._client, CSI_NODES, self._node) or await self._create(node)
            await change(self._client, CSI_NODES, found, lambda now: _entries(now, driver, _entry(driver, info)))

    async def remove(self, driver: str) -> None:
        """Take a driver out again; its topology labels stay, as in Kubernetes."""
        async with self._lock:
            with suppress(ApiNotFoundError):  # the node is deleted, and its entries with it
                if (found := await find(self._client, CSI_NODES, self._node)) is not None:
                    await change(self._client, CSI_NODES, found, lambda now: _entries(now, driver, None))
                await self._annotate(driver, None)

    async def _annotate(self, driver: str, info: NodeInfo | None) -> Node:
        node = await self._client.get(NODES, self._node)
        return await change(self._client, NODES, node, lambda now: _metadata(now, driver, info))

    async def _create(self, node: Node) -> CSINode:
        body = {"metadata": {"name": self._node, "ownerReferences": _owner(node)}, "spec": {"drivers": []}}
        try:
            return await self._client.create(CSI_NODES, body)
        except ApiAlreadyExistsError:
            return await self._client.get(CSI_NODES, self._node)


def _metadata(node: Node, driver: str, info: NodeInfo | None) -> dict[str, Any] | None:
    labels = {} if info is None else _new_labels(node, info)
    ids = _node_ids(node)
    wanted = {name: i for name, i in ids.items() if name != driver}
    if info is not None:
        wanted[driver] = info.node_id
    if wanted == ids and not labels:
        return None
    text = msgspec.json.encode(wanted, order="sorted").decode() if wanted else None
    return {"metadata": {"annotations": {names.NODE_ID_ANNOTATION: text}, "labels": labels}}


def _entries(csinode: CSINode, driver: str, entry: CSINodeDriver | None) -> dict[str, Any] | None:
    if csinode.driver(driver) == entry:
        return None
    drivers = [d for d in csinode.spec.drivers if d.name != driver] + ([entry] if entry else [])
    return {"spec": {"drivers": [{"topologyKeys": None, **to_builtins(d)} for d in drivers]}}


def _owner(node: Node) -> list[dict[str, str]]:
    return [{"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}]


def _entry(driver: str, info: NodeInfo) -> CSINodeDriver:
    entry: dict[str, Any] = {"name": driver, "nodeID": info.node_id, "topologyKeys": sorted(info.topology)}
    if info.max_volumes > 0:
        entry["allocatable"] = {"count": min(info.max_volumes, _MAX_COUNT)}
    return msgspec.convert(entry, CSINodeDriver)


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
