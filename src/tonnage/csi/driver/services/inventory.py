"""The Inventory service: all contents of a driver's pools, with inline volumes and what is being erased.

CSI has no call for this. It is a read-only service on the driver's CSI socket, for the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tonnage.csi._proto import inventory_pb2
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.service import Service
from tonnage.storage.pools.core import status
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.core.status import PoolStatus

_TIMEOUT = 60.0  # seconds: every volume of every pool is checked


class Inventory:
    """The Inventory service. pools: by name."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = pools

    async def ReadPools(self, _request: inventory_pb2.ReadPoolsRequest) -> inventory_pb2.ReadPoolsResponse:
        """All pools; an unreadable one with the reason."""
        found = await asyncio.gather(*(status.read(pool) for pool in self._pools.values()))
        return inventory_pb2.ReadPoolsResponse(pools=msgspec.json.encode(found))


def service(pools: Mapping[str, Pool]) -> Service:
    """The service for a server."""
    return Service(inventory_pb2.DESCRIPTOR.services_by_name["Inventory"], Inventory(pools))


async def read(socket: Path) -> Sequence[PoolStatus] | None:
    """The contents of the pools of the driver at socket; None for a driver without the service. Raises: CsiError."""
    from tonnage.csi._proto import inventory_grpc  # a server needs no client
    from tonnage.csi.server.connection import GrpcConnection

    connection = GrpcConnection(socket)
    try:
        method = inventory_grpc.InventoryStub(connection.channel).ReadPools
        answer = await connection.call(method, inventory_pb2.ReadPoolsRequest(), _TIMEOUT)
        return msgspec.json.decode(answer.pools, type=list[PoolStatus])
    except CsiError as failure:
        if failure.code in (Code.UNIMPLEMENTED, Code.UNKNOWN):  # grpclib's servers say the latter
            return None
        raise
    except msgspec.MsgspecError as failure:
        raise CsiError(Code.INTERNAL, f"the driver at {socket} is of another version: {failure}") from None
    finally:
        connection.close()
