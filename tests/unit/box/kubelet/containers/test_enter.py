"""The helper program that enters a container imports nothing of ours, and gives up its rights in a process of its own."""

from __future__ import annotations

import ast
import marshal
import os
import subprocess
import sys

import pytest

from tonnage.box.kubelet.containers import enter


def test_needs_the_interpreter_only() -> None:
    with open(enter.__file__) as file:
        tree = ast.parse(file.read())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert all(node in tree.body for node in imports), "nothing is imported once it is inside"
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    assert len(imports) == len(names)
    assert names == {"ctypes", "marshal", "os", "sys"}


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_process_that_has_ended_cannot_be_entered() -> None:
    child = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(child.pid)
    child.wait()
    reader, writer = os.pipe()
    os.write(writer, marshal.dumps({"pidfd": pidfd, "group": ""}))
    os.close(writer)
    command = [sys.executable, "-I", "-S", enter.__file__, str(reader)]
    done = subprocess.run(command, pass_fds=(pidfd, reader), capture_output=True, check=False)
    os.close(pidfd)
    os.close(reader)
    assert done.returncode == 125
    assert done.stderr.startswith(b"cannot enter the container: ")
