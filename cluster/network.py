"""The addresses of one cluster on this machine: several may run at once, each with a number of its own.

For pods the Service `kubernetes` is an address of this machine's loopback while the cluster has nodes. Whoever can add
that address has its number: the kernel decides between two that start at the same moment.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.processes import Failed, Processes

_MOST = 32
_MOST_NODES = 7
_PORT = 443
_NAME = "service"
_FILE = "network"


@dataclass(frozen=True)
class Network:
    """What is derived from a cluster's number."""

    number: int = 0

    @property
    def services(self) -> str:
        """The range of the Services' addresses."""
        return f"10.97.{self.number}.0/24"

    @property
    def service(self) -> str:
        """The address of the Service `kubernetes`."""
        return f"10.97.{self.number}.1"

    def node(self, node: int) -> str:
        """The address of a node, from 1."""
        return f"10.99.{self.number}.{node}"

    def pods(self, node: int) -> str:
        """The range of the addresses of a node's pods."""
        return f"10.98.{self.number * (_MOST_NODES + 1) + node}.0/24"

    def bridge(self, node: int) -> str:
        """The name of a node's bridge."""
        return f"ton{self.number}br{node}"


def take(folder: Path, nodes: int) -> Network:
    """The network of a new cluster in `folder`; without nodes it needs no addresses. Raises Failed if all are taken."""
    if nodes > _MOST_NODES:
        raise Failed(f"{nodes} nodes: at most {_MOST_NODES} are possible")
    if not nodes:
        return Network()
    told = ""
    for number in range(_MOST):
        network = Network(number)
        added = _ip("add", network)
        told = added.stderr.strip()
        if added.returncode:
            continue
        if not _listens(network):
            (folder / _FILE).write_text(str(number))
            return network
        told = "a process of a cluster that was killed still listens there"
        _ip("del", network)
    raise Failed(f"no address for the cluster's Service, the last of {_MOST} that were tried: {told}")


def of(folder: Path) -> Network:
    """The network of a cluster that was started."""
    with suppress(FileNotFoundError, ValueError):
        return Network(int((folder / _FILE).read_text()))
    return Network()


def serve(network: Network, processes: Processes, port: int) -> None:
    """Pass connections to the Service on to the API server at 127.0.0.1:`port`. Raises Failed."""
    program = Path(__file__).with_name("forward.py")
    processes.start(_NAME, [sys.executable, "-I", program, network.service, str(_PORT), "127.0.0.1", str(port)])
    processes.wait(_NAME, lambda: _listens(network), 30.0)


def release(folder: Path, processes: Processes) -> None:
    """End the Service and give the number back. May be repeated."""
    if _NAME in processes.names():
        processes.end(_NAME)
    if (folder / _FILE).exists():
        _ip("del", of(folder))
        (folder / _FILE).unlink()


def _ip(action: str, network: Network) -> subprocess.CompletedProcess[str]:
    command = ["ip", "addr", action, f"{network.service}/32", "dev", "lo"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _listens(network: Network) -> bool:
    with suppress(OSError), socket.create_connection((network.service, _PORT), timeout=1):
        return True
    return False
