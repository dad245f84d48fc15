"""Whole clusters in a box, as a user makes them, and the command line."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cluster import programs
from tests.starts import starter

from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.tools.cli.main import main

OF_A_BOX = ("bwrap", "mkfs.ext4", "mkfs.xfs", "kubectl")
"""Programs that whole clusters need."""
T = TypeVar("T", bound=KubeObject)


def tonnage(*arguments: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """Run the command line; whatever it says and however it ends is the caller's to judge."""
    return starter().run(arguments, seconds)


def verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same for a verb that lists or changes something and returns, in this process.

    A process of its own imports for a second.
    """
    out, error, root = io.StringIO(), io.StringIO(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with redirect_stdout(out), redirect_stderr(error):
            code = main(arguments)
    finally:  # verbs set logging up
        root.handlers[:] = handlers
        root.setLevel(level)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), error.getvalue())


@dataclass
class Cluster:
    """A cluster in a data folder and the kubectl that talks to it."""

    data: Path
    arguments: tuple[str, ...]
    home: Path
    said: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def up(self, *more: str) -> str:
        """Start it; what it printed."""
        ended = tonnage("up", "--detach", "--port", "0", "--data", str(self.data), *self.arguments, *more)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        places = {"KUBECONFIG": str(self.data / "kubeconfig"), "HOME": str(self.home)}
        # A kubectl ends before its garbage matters: without collection it takes a sixth less processor time.
        self.environment = {**os.environ, **places, "GOGC": "off", "GOMEMLIMIT": "256MiB"}
        return ended.stdout

    def down(self, *more: str) -> str:
        """End it; what it printed."""
        ended = tonnage("down", "--data", str(self.data), *more)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def pid(self) -> int:
        """Of the process that runs it."""
        return int((self.data / "lock").read_text())

    def kubectl(self, *arguments: str, stdin: str | None = None, fails: bool = False, **environment: str) -> str:
        """Run kubectl; its output (with the errors when it is to fail)."""
        ended = subprocess.run(
            [str(programs.kubectl()), *arguments], input=stdin, capture_output=True, text=True, timeout=400, check=False,
            env={**self.environment, **environment},
        )  # fmt: skip
        assert (ended.returncode != 0) == fails, f"kubectl {' '.join(arguments)}: {ended.stdout}{ended.stderr}"
        return ended.stdout + (ended.stderr if fails else "")

    def get(self, *arguments: str) -> Any:
        """Objects as data."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def objects(self, kind: Kind[T]) -> list[T]:
        """All objects of a kind, for what is asked over and over: a kubectl takes more processor time than the box."""

        async def ask() -> list[T]:
            transport = HttpTransport(kubeconfig.load(self.data / "kubeconfig"))
            try:
                return list((await Client(transport).list(kind)).items)
            finally:
                await transport.close()

        return asyncio.run(ask())

    def until(self, what: str, holds: Callable[[], bool], *, seconds: float = 300) -> None:
        """Wait for something that no watch of ours tells."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not so after {seconds:.0f} s: {what}"
            time.sleep(0.1)

    def images(self) -> list[Path]:
        """The files of its pools' volumes. Only pools are read: containers' folders go while they are."""
        return sorted(self.data.glob("nodes/*/pools/*/*.img"))

    def capacities(self, storage_class: str = "tonnage-scratch") -> dict[str, str]:
        """Node -> published capacity, by the go-template of the issue."""
        template = '{{range .items}}{{.storageClassName}} {{.nodeTopology.matchLabels}} {{.capacity}}{{"\\n"}}{{end}}'
        lines = self.kubectl("get", "-A", "csistoragecapacities", "-o", f"go-template={template}").splitlines()
        rows = [line.replace("map[topology.tonnage.dev/node:", "").replace("]", "").split() for line in lines]
        return {node: capacity for name, node, capacity in rows if name == storage_class}
