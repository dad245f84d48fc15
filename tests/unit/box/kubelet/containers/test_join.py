"""The helper that joins a container, alone. What it does in containers: test_pod_streams, test_exec_process."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests import keys

from tonnage_box.kubelet import containers

HELPER = Path(containers.__file__).with_name("join.py")


def test_it_ends_with_the_kubelet() -> None:
    """The plan's pipe ends without a plan."""
    gate, writer = os.pipe()
    os.close(writer)
    ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, control:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", str(HELPER), str(control.fileno()), str(gate), "0"],
            pass_fds=(control.fileno(), gate), capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        control.close()
        assert ours.recv(100) == b""
    os.close(gate)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")


def test_it_imports_nothing_later() -> None:
    """A module that is imported in the container would be a file of the container."""
    tree = ast.parse(HELPER.read_text())
    everywhere = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)] == everywhere
    names = {alias.name for node in everywhere if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in everywhere if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


def test_a_session_keyring_of_its_own() -> None:
    keys.needs_keys()
    script = (
        "from tests import keys; from tonnage_box.kubelet.containers import join, seccomp; import os; "
        "print(keys.session_keyring()); join._leave_keyring(seccomp.keyctl_number(os.uname().machine)); "
        "print(keys.session_keyring())"
    )
    before, after = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert before != after
