"""Handlers of probes and hooks: exec, httpGet, tcpSocket, grpc, sleep (Kubernetes' kubelet/prober and lifecycle)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tonnage.base.errors import InvalidError, TonnageError, UnsupportedError
from tonnage.kubernetes.api.pods import Container
from tonnage_box.kubelet.containers.env import expand
from tonnage_box.kubelet.containers.rootfs import ADDRESS
from tonnage_box.kubelet.containers.runtime import RunningContainer, Runtime
from tonnage_box.kubelet.probes.probe_state import ProbeResult, ProbeSpec

LIMIT = 10 << 10
"""Bytes that are used of what a command prints."""


class HookError(TonnageError):
    """A lifecycle hook failed."""


async def check(runtime: Runtime, where: RunningContainer, spec: ProbeSpec) -> tuple[ProbeResult, str]:
    """Probe a container once; the answer, and what to say of a failure.

    A success with a text is a warning. Raises: TonnageError when the probe itself fails: that is no answer.
    """
    handler = spec.handler
    if runtime.name == "none":  # there are no processes
        return ProbeResult.SUCCESS, ""
    if (action := handler.get("exec")) is not None:
        return await _command(runtime, where, action, spec.timeout)
    if (action := handler.get("httpGet")) is not None:
        return await _http(where.container, action, spec.timeout)
    if (action := handler.get("tcpSocket")) is not None:
        return await _tcp(where.container, action, spec.timeout)
    if (action := handler.get("grpc")) is not None:
        raise UnsupportedError("a grpc probe is not supported: use exec, httpGet or tcpSocket")
    raise InvalidError(f"missing probe handler for {where.container.name}")


async def _command(
    runtime: Runtime, where: RunningContainer, action: Mapping[str, Any], timeout: float
) -> tuple[ProbeResult, str]:
    values = {v.name: v.value for v in where.container.env if v.value_from is None}
    argv = [expand(text, values) for text in action.get("command") or ()]
    try:
        code, output = await runtime.run(where, argv, timeout=timeout, limit=LIMIT)
    except TimeoutError:
        text = f'command timed out: "{" ".join(argv)}" timed out after {timeout:g}s'
        return ProbeResult.FAILURE, text
    if code == 0:
        return ProbeResult.SUCCESS, ""
    return ProbeResult.FAILURE, output.decode(errors="replace")


async def _http(container: Container, action: Mapping[str, Any], timeout: float) -> tuple[ProbeResult, str]:
    from tonnage_box.kubelet.probes import http_get

    try:
        answer = await http_get.get(url_of(container, action), headers_of(action), timeout=timeout)
    except http_get.HttpGetError as failure:
        return ProbeResult.FAILURE, str(failure)
    if 300 <= answer.code < 400:
        text = answer.content.decode(errors="replace")
        return ProbeResult.SUCCESS, f"Probe terminated redirects, Response body: {text}"
    if 200 <= answer.code < 300:
        return ProbeResult.SUCCESS, ""
    return ProbeResult.FAILURE, f"HTTP probe failed with statuscode: {answer.code}"


async def _tcp(container: Container, action: Mapping[str, Any], timeout: float) -> tuple[ProbeResult, str]:
    host, port = action.get("host") or ADDRESS, port_of(container, action.get("port"))
    where = f"dial tcp {_join(host, port)}"
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return ProbeResult.FAILURE, f"{where}: i/o timeout"
    except OSError as failure:
        rejected = isinstance(failure, ConnectionRefusedError)
        return ProbeResult.FAILURE, f"{where}: {'connect: connection refused' if rejected else failure}"
    writer.transport.abort()
    return ProbeResult.SUCCESS, ""


async def hook(runtime: Runtime, where: RunningContainer, handler: Mapping[str, Any]) -> None:
    """Run a lifecycle hook to its end. Raises: HookError, other TonnageErrors."""
    if runtime.name == "none":
        return
    if (action := handler.get("exec")) is not None:
        argv = [str(text) for text in action.get("command") or ()]
        code, output = await runtime.run(where, argv, timeout=None, limit=LIMIT)
        if code != 0:
            raise HookError(f"command {argv[:1]} exited with {code}: {output.decode(errors='replace')[:1000]}")
    elif (action := handler.get("httpGet")) is not None:
        from tonnage_box.kubelet.probes import http_get

        await http_get.get(url_of(where.container, action), headers_of(action), timeout=None)
    elif (action := handler.get("sleep")) is not None:
        await asyncio.sleep(float(action.get("seconds") or 0))
    else:
        raise UnsupportedError(f"hook of container {where.container.name}: no handler exec, httpGet or sleep")


def port_of(container: Container, port: object) -> int:
    """A port by number or name. Raises: InvalidError."""
    if isinstance(port, str) and not port.isdecimal():
        number = next((p.container_port for p in container.ports if p.name == port), 0)
    else:
        number = int(str(port or 0))
    if not 0 < number < 65536:
        raise InvalidError(f"invalid port number: {port}")
    return number


def url_of(container: Container, action: Mapping[str, Any]) -> str:
    """What an httpGet asks for; without host the machine's loopback, which containers share. Raises: InvalidError."""
    scheme, host = (action.get("scheme") or "HTTP").lower(), action.get("host") or ADDRESS
    path = action.get("path") or "/"
    return f"{scheme}://{_join(host, port_of(container, action.get('port')))}{'' if path[:1] == '/' else '/'}{path}"


def headers_of(action: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The httpHeaders of an httpGet."""
    return [(str(one.get("name", "")), str(one.get("value", ""))) for one in action.get("httpHeaders") or ()]


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
