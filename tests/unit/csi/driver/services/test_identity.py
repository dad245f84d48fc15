"""Identity through a real socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tonnage import __version__
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import names

GIB = 1 << 30
MOUNT = [VolumeCapability()]
BLOCK = [VolumeCapability(block=True)]
HERE = {names.TOPOLOGY_NODE: "node-1"}
ELSEWHERE = {names.TOPOLOGY_NODE: "node-2"}
Rejected = Callable[..., Awaitable[CsiError]]


async def test_identity(client: CsiClient) -> None:
    assert await client.probe()
    manifest = {names.MANIFEST_DEFAULT_POOL: "default", names.MANIFEST_POOLS: "default=fake,fast=fake"}
    assert await client.plugin_info() == types.PluginInfo("csi.tonnage.dev", __version__, manifest)
    assert client.driver == "csi.tonnage.dev"
    assert await client.plugin_capabilities() == {
        "CONTROLLER_SERVICE",
        "VOLUME_ACCESSIBILITY_CONSTRAINTS",
        "GROUP_CONTROLLER_SERVICE",
        "EXPANSION_ONLINE",
    }
    assert await client.controller_capabilities() == {
        "CREATE_DELETE_VOLUME",
        "GET_CAPACITY",
        "LIST_VOLUMES",
        "SINGLE_NODE_MULTI_WRITER",
        "GET_VOLUME",
        "VOLUME_CONDITION",
        "CREATE_DELETE_SNAPSHOT",
        "LIST_SNAPSHOTS",
        "GET_SNAPSHOT",
        "CLONE_VOLUME",
        "EXPAND_VOLUME",
        "MODIFY_VOLUME",
    }
