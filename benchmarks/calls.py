"""Round trips of single calls, by the gRPC client of the gRPC project (its C core): the same for every driver, and with
less of its own in the figure than a client in Python has."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import grpc  # type: ignore[import-untyped]

from tonnage.csi._proto import csi_pb2

CALLS = 1000


def get_capacity(socket: Path, parameters: Mapping[str, str] | None = None) -> float:
    """Milliseconds of GetCapacity, the median. Blocking."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            "/csi.v1.Controller/GetCapacity",
            request_serializer=csi_pb2.GetCapacityRequest.SerializeToString,
            response_deserializer=csi_pb2.GetCapacityResponse.FromString,
        )
        request = csi_pb2.GetCapacityRequest(parameters=parameters or {})
        for _ in range(CALLS // 10):
            call(request)
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            call(request)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
