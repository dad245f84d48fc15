"""The address of the Service `kubernetes`, for pods: on this machine's loopback while a cluster has nodes."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from cluster.processes import Failed, Processes

RANGE = "10.97.0.0/24"
ADDRESS = "10.97.0.1"
PORT = 443
_NAME = "service"


def start(processes: Processes, port: int) -> None:
    """Pass connections to the Service on to the API server at 127.0.0.1:`port`. Raises Failed."""
    added = subprocess.run(
        ["ip", "addr", "replace", f"{ADDRESS}/32", "dev", "lo"], capture_output=True, text=True, check=False
    )
    if added.returncode:
        raise Failed(f"{ADDRESS} cannot be had: {added.stderr.strip()}")
    program = Path(__file__).with_name("forward.py")
    processes.start(_NAME, [sys.executable, "-I", program, ADDRESS, str(PORT), "127.0.0.1", str(port)])
    processes.wait(_NAME, _listens, 30.0)


def stop(processes: Processes) -> None:
    """Take the address away again. May be repeated."""
    if _NAME not in processes.names():
        return
    processes.end(_NAME)
    subprocess.run(["ip", "addr", "del", f"{ADDRESS}/32", "dev", "lo"], capture_output=True, check=False)


def _listens() -> bool:
    with suppress(OSError), socket.create_connection((ADDRESS, PORT), timeout=1):
        return True
    return False
