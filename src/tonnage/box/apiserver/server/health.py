"""Paths without a resource: /version, /healthz and its like, /metrics."""

from __future__ import annotations

import asyncio
import platform
import sys

import msgspec

from tonnage import __version__
from tonnage.kube.transport import JSON, Request, Response
from tonnage.observe import metrics

KUBERNETES = (1, 34)
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE = "text/plain; charset=utf-8"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_HEALTH = ("/healthz", "/livez", "/readyz")


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


async def basic(request: Request) -> Response | None:
    """Answer /version, /readyz, /livez, /healthz (and single checks below them) and /metrics; None for other paths."""
    path = request.path
    if path.startswith("/api"):
        return None
    if path in ("/version", "/version/"):
        return Response(200, msgspec.json.encode(version()), {"Content-Type": JSON})
    if path in _HEALTH or path.rpartition("/")[0] in _HEALTH:
        return Response(200, b"ok", {"Content-Type": _TEXT_TYPE})
    if path == "/metrics":
        return Response(200, await asyncio.to_thread(metrics.render), {"Content-Type": _METRICS_TYPE})
    return None
