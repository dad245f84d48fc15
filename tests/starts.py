"""A process that has imported the box, and starts `tonnage` in copies of itself: a new interpreter imports for a second.

A copy has the caller's arguments, variables and folder, standard output and error of its own, and exits as a program.
What a start imports by itself is shown by the tests that run real commands: tests/docs, and all `python -m tonnage`.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache

from tonnage.tools.cli.main import build_parser, main

_MOST = 1 << 20
"""Bytes of a message: arguments and variables."""


class Starter:
    """The process, seen from a test. Starts are one after the other."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.starts", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def run(self, arguments: tuple[str, ...], seconds: float) -> subprocess.CompletedProcess[str]:
        """Run the command line. Raises: TimeoutError."""
        with self._turn, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
            request = json.dumps([arguments, dict(os.environ), os.getcwd()])
            socket.send_fds(self._ours, [request.encode()], [out.fileno(), error.fileno()])
            self._ours.settimeout(seconds)
            try:
                code = int(self._ours.recv(16))
            except TimeoutError:
                end()  # the next test has another one
                raise
            out.seek(0)
            error.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read(), error.read())

    def end(self) -> None:
        """End the process; what it started in the background stays."""
        self._process.terminate()
        self._process.wait()


@cache
def starter() -> Starter:
    """The one of this pytest."""
    return Starter()


def end() -> None:
    """End it, if there is one."""
    if starter.cache_info().currsize:
        starter().end()
        starter.cache_clear()


def _serve(requests: socket.socket) -> int:
    """Start what is asked for until the other end is closed; in a copy: its exit code."""
    for verb in ("up", "down"):
        build_parser(verb)  # imports it
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MOST, 2)
        if not message:
            return 0
        if not (child := os.fork()):
            requests.close()
            arguments, environment, folder = json.loads(message)
            return _run(arguments, environment, folder, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _run(arguments: list[str], environment: dict[str, str], folder: str, descriptors: list[int]) -> int:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return main(arguments)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        sys.exit(_serve(given))
