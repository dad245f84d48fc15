"""Round trip of an exec through the API: connect, run `true` in a container, read its status, disconnect."""

from __future__ import annotations

import asyncio
import ssl
import statistics
import time
from pathlib import Path

import aiohttp
import yaml
from benchmarks.box.box import ROOT, in_process
from benchmarks.figure import Figure

from tonnage.kubernetes.api.kinds import PODS
from tonnage_box.api.wait import until

ROUNDS, WARM = 200, 20
AT_ONCE = 1000
_PATH = "/api/v1/namespaces/default/pods/p/exec?command=true&stdout=true&stderr=true"
_PROTOCOL = "v5.channel.k8s.io"


async def run() -> list[Figure]:
    """One after the other, then many at once; nothing where containers cannot run."""
    if not ROOT:
        return []
    async with in_process(nodes=1, pool="fake,size=1Gi", runtime="bwrap") as box:
        container = {"name": "main", "image": "x", "command": ["sleep", "1000"]}
        spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
        await box.client.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, "default")
        await until(box.client, PODS, "p", lambda p: p.status.phase == "Running", namespace="default")
        async with _session(box.kubeconfig) as session:
            url = box.url + _PATH
            took = [await _round(session, url) for _ in range(WARM + ROUNDS)][WARM:]
            many = await asyncio.gather(*(_round(session, url) for _ in range(AT_ONCE)), return_exceptions=True)
    rejected = sum(isinstance(one, aiohttp.WSServerHandshakeError | PermissionError) for one in many)
    failed = sum(isinstance(one, BaseException) for one in many) - rejected
    return [
        Figure("exec round trip, median", statistics.median(took) * 1000, "ms", at_most=50),
        Figure("exec round trip, 99th percentile", statistics.quantiles(took, n=100)[98] * 1000, "ms"),
        Figure(f"{AT_ONCE} execs at once: rejected by the limit", rejected, ""),
        Figure(f"{AT_ONCE} execs at once: failed otherwise", failed, "", at_most=0),
    ]


def _session(kubeconfig: Path) -> aiohttp.ClientSession:
    """A client with the kubeconfig's credentials; it does not check the server's."""
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    patient = aiohttp.ClientTimeout(total=None, sock_connect=None)  # the server accepts few connections at one time
    headers = {"Authorization": f"Bearer {token}"}
    return aiohttp.ClientSession(headers=headers, connector=connector, timeout=patient)


async def _round(session: aiohttp.ClientSession, url: str) -> float:
    """Seconds of one. Raises PermissionError when the limit of sessions is reached."""
    began = time.monotonic()
    status = b""
    async with session.ws_connect(url, protocols=[_PROTOCOL]) as client:
        async for message in client:
            if message.data[:1] == b"\x03":
                status = message.data[1:]
    if b"TooManyRequests" in status:
        raise PermissionError(status.decode())
    if b"Success" not in status:
        raise ConnectionError(status.decode())
    return time.monotonic() - began
