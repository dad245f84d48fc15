"""Paths that name no resource: version, health, metrics."""

from __future__ import annotations

import asyncio
import platform
import sys

from tonnage import __version__
from tonnage.apiserver.handler import json_answer, plain
from tonnage.kube.transport import Request, Response
from tonnage.observe import metrics

KUBERNETES = (1, 34)
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def version() -> dict[str, str]:
    """What /version says: the Kubernetes whose API this is, as a semantic version."""
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
    """Answer /version, /readyz, /livez, /healthz and /metrics; None for anything else."""
    match request.path:
        case "/version" | "/version/":
            return json_answer(version())
        case "/readyz" | "/livez" | "/healthz":
            return plain("ok")
        case "/metrics":
            text = await asyncio.to_thread(metrics.render)
            return Response(200, text, {"Content-Type": _METRICS_TYPE})
    return None
