"""Sockets of external CSI drivers, as --csi-endpoint names them for each node of a box."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tonnage.csi.server.sockets import check_length
from tonnage.errors import InvalidError


def endpoints(texts: Sequence[str], nodes: Sequence[str]) -> dict[str, list[Path]]:
    """Node -> sockets, out of `[NODE=]SOCKET`. NODE may be left out when there is one node. Raises InvalidError.

    A socket may be written as a path or as CSI_ENDPOINT is (`unix:///run/driver.sock`); it need not exist yet.
    """
    found: dict[str, list[Path]] = {}
    users: dict[Path, str] = {}
    for text in texts:
        node, socket = _parse(text, nodes)
        if socket in users:
            raise InvalidError(
                f"--csi-endpoint {text}: {socket} already serves {users[socket]}; a driver serves one node"
            )
        users[socket] = node
        found.setdefault(node, []).append(socket)
    return found


def _parse(text: str, nodes: Sequence[str]) -> tuple[str, Path]:
    before, equals, after = text.partition("=")
    if not equals or "/" in before:
        before, after = "", text
    if not before and len(nodes) > 1:
        raise InvalidError(
            f"--csi-endpoint {text}: there are {len(nodes)} nodes, say which one the driver serves: {nodes[0]}={text}"
        )
    node = before or nodes[0]
    if node not in nodes:
        raise InvalidError(f"--csi-endpoint {text}: there is no node {node!r}, only {', '.join(nodes)}")
    path = after.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if not path or "\0" in path:
        raise InvalidError(f"--csi-endpoint {text!r}: want [NODE=]SOCKET, the path of the driver's unix socket")
    socket = Path(os.path.abspath(path))
    check_length(socket)
    return node, socket
