"""Subresources exec and attach of pods: their options, and which connections they accept."""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.kubernetes.client.transport import Request
from tonnage_box.api.remote_command import OpenSession, Session, StreamOptions
from tonnage_box.apiserver.request.errors import bad_request, method_not_allowed, not_built
from tonnage_box.apiserver.request.options import flag
from tonnage_box.apiserver.request.routes import RequestPath

SUBRESOURCES = ("exec", "attach")


@dataclass(frozen=True)
class Upgrade:
    """The connection becomes a WebSocket, and the session serves it."""

    session: Session
    options: StreamOptions


async def upgrade(place: RequestPath, request: Request, opened: OpenSession | None) -> Upgrade:
    """The session of a request. Raises: ApiError: bad options first, then the pod, then the kind of connection."""
    if request.method not in ("GET", "POST"):
        raise method_not_allowed(f"the server does not allow {request.method} on {place.subresource}")
    options = read_options(place.subresource, request)
    if opened is None:
        raise not_built("no kubelet here runs containers")
    session = await opened(place.namespace or "", place.name, options)
    if request.upgrade.startswith("spdy/"):
        raise bad_request(
            "SPDY is not served; connect by WebSocket with the subprotocol v5.channel.k8s.io: kubectl 1.30 and later "
            "do, 1.29 does with KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true"
        )
    if request.upgrade != "websocket" or request.method != "GET":
        raise bad_request("Upgrade request required")
    return Upgrade(session, options)


def read_options(subresource: str, request: Request) -> StreamOptions:
    """PodExecOptions or PodAttachOptions of a query. Raises: a 400."""
    query = request.query
    pairs = request.pairs or tuple(query.items())
    command = tuple(value for key, value in pairs if key == "command") if subresource == "exec" else ()
    if subresource == "exec" and not (command and command[0]):
        raise bad_request("you must specify at least 1 command for the container")
    stdin, tty = flag(query, "stdin"), flag(query, "tty")
    stdout, stderr = _is_on(request, "stdout"), _is_on(request, "stderr")
    if tty:
        stderr = False  # a terminal has one output
    if not (stdin or stdout or stderr):
        raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
    return StreamOptions(query.get("container", ""), command, stdin, stdout, stderr, tty)


def _is_on(request: Request, name: str) -> bool:
    """Outputs are on unless the query names them, as Kubernetes defaults them."""
    return flag(request.query, name) if name in request.query else True
