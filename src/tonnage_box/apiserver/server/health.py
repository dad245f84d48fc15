"""Paths without a resource: /version, /healthz and its like, /metrics."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Mapping

import msgspec

from tonnage import __version__
from tonnage.base.observe import metrics
from tonnage.kubernetes.client.transport import JSON, Request, Response

KUBERNETES = (1, 36)
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE = "text/plain; charset=utf-8"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_HEALTH = ("healthz", "livez", "readyz")
_CHECKS = ("ping", "log", "etcd")
"""Names that clients ask for. A server that answers has its store, which is what etcd is elsewhere, and its log."""


def version() -> dict[str, str]:
    """Content of /version: the Kubernetes version whose API this is."""
    major, minor = KUBERNETES
    return {
        "major": str(major),
        "minor": str(minor),
        "gitVersion": f"v{major}.{minor}.0+tonnage.{__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": f"python{sys.version_info.major}.{sys.version_info.minor}",
        "platform": f"linux/{_MACHINES.get(platform.machine(), platform.machine())}",
    }


def _health(word: str, check: str, query: Mapping[str, str]) -> Response | None:
    """Health as Kubernetes words it: one check alone, all in one word, or each in a line (verbose)."""
    headers = {"Content-Type": _TEXT_TYPE}
    if check:
        return Response(200, b"ok", headers) if check in _CHECKS else None
    if "verbose" not in query:
        return Response(200, b"ok", headers)
    excluded = query.get("exclude", "")
    lines = [f"[+]{name} {'excluded: ok' if name == excluded else 'ok'}" for name in _CHECKS]
    return Response(200, "\n".join([*lines, f"{word} check passed\n"]).encode(), headers)


async def basic(request: Request) -> Response | None:
    """Answer /version, /metrics, and /readyz, /livez, /healthz with single checks below them; None for other paths."""
    path = request.path
    if path.startswith("/api"):
        return None
    if path in ("/version", "/version/"):
        return Response(200, msgspec.json.encode(version()), {"Content-Type": JSON})
    word, _, check = path.removeprefix("/").partition("/")
    if word in _HEALTH:
        return _health(word, check.strip("/"), request.query)
    if path == "/metrics":
        return Response(200, await asyncio.to_thread(metrics.render), {"Content-Type": _METRICS_TYPE})
    return None
