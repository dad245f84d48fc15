"""Objects as JSON that tests send."""

from __future__ import annotations

from typing import Any


def config(name: str = "x", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "busybox"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def nested(depth: int, inner: Any = "x") -> Any:
    """A value in so many lists."""
    for _ in range(depth):
        inner = [inner]
    return inner
