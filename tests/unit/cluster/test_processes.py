"""Ports for servers that start later."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.processes import Failed, free_port

_ANOTHER = "from cluster.processes import free_port; print(*(free_port() for _ in range(5)))"


def test_no_port_is_given_twice_or_to_an_outgoing_connection() -> None:
    mine = {free_port() for _ in range(50)}
    answer = subprocess.run([sys.executable, "-c", _ANOTHER], capture_output=True, text=True, check=True)
    theirs = {int(word) for word in answer.stdout.split()}
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(mine) == 50
    assert len(theirs) == 5
    assert not mine & theirs
    assert max(mine | theirs) < first_outgoing


def test_taken_ports_are_left_out() -> None:
    with socket.socket() as other:
        port = free_port()
        other.bind(("127.0.0.1", port))
        with pytest.raises(Failed, match="all ports from"):
            free_port(range(port, port + 1))
