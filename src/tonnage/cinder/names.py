"""What a request names: parameters of a class, whole gibibytes, a node's id."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tonnage.base.errors import InvalidError, NotFoundError, OutOfRangeError
from tonnage.csi._proto import csi_pb2
from tonnage.kubernetes.api import names

GI = 1 << 30
BACKEND, POOL = "backend", "backend-pool"
LONGEST_NODE_ID = 192
"""Bytes of a node id that Kubernetes stores in a CSINode."""
_DEFAULTS = {"multipath": False, "enforce_multipath": False, "do_local_attach": False, "os_type": "linux"}
"""Of a connector, as os-brick has them; drivers of Cinder expect the keys."""


@dataclass(frozen=True)
class CinderParameters:
    """Parameters of a class. backend, pool: "" for the first one. qos, extra: of the volume's type in Cinder."""

    backend: str = ""
    pool: str = ""
    qos: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)


def wanted(parameters: Mapping[str, str], backends: Sequence[str]) -> CinderParameters:
    """Parse parameters. Raises: InvalidError for unknown ones, and for a back end that is not configured."""
    prefixed: dict[str, dict[str, str]] = {"qos_": {}, "xtra_": {}}
    for key, value in parameters.items():
        prefix = next((prefix for prefix in prefixed if key.startswith(prefix) and key != prefix), "")
        if prefix:
            prefixed[prefix][key.removeprefix(prefix)] = value
        elif key not in (BACKEND, POOL) and not key.startswith(names.CSI_PREFIX):
            raise InvalidError(f"unknown parameter {key[:60]!r}: known are {BACKEND}, {POOL}, qos_* and xtra_*")
    backend = parameters.get(BACKEND) or backends[0]
    if backend not in backends:
        raise InvalidError(f"parameter {BACKEND}={backend[:60]!r}: the configuration has {', '.join(backends)}")
    return CinderParameters(backend, parameters.get(POOL, ""), prefixed["qos_"], prefixed["xtra_"])


def gibibytes(asked: csi_pb2.CapacityRange, least: int = 1) -> int:
    """The size of a volume in whole GiB, rounded up. Raises: InvalidError, OutOfRangeError above the limit."""
    if asked.required_bytes < 0 or asked.limit_bytes < 0:
        raise InvalidError(f"capacity_range {asked.required_bytes} to {asked.limit_bytes}: want 0 or more")
    size = max(least, -(-asked.required_bytes // GI))
    if 0 < asked.limit_bytes < size * GI:
        raise OutOfRangeError(f"the limit is {asked.limit_bytes} bytes: sizes are whole GiB here, want {size * GI}")
    return size


def node_id(properties: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The id of a node: what os-brick says about it, as JSON. Raises: InvalidError for more than Kubernetes stores."""
    found = {key: properties[key] for key in keys if properties.get(key)}
    text = json.dumps(found, separators=(",", ":"), sort_keys=True)
    if len(text) > LONGEST_NODE_ID:
        raise InvalidError(f"node id {text}: {len(text)} bytes, Kubernetes stores {LONGEST_NODE_ID}; name fewer keys")
    return text


def connector(node: str) -> dict[str, Any]:
    """The connector of a node id, for Cinder's drivers. Raises: NotFoundError for one that is not of ours."""
    try:
        found = json.loads(node)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found.get("host"):
        raise NotFoundError(f"node {node[:80]!r} is not known: want the id that this driver gave it")
    return {**_DEFAULTS, **found, "node": node}
