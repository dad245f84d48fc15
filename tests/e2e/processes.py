"""Processes of `tonnage node` and `tonnage driver` beside a control plane without nodes, with real pools on this disk.

An agent has its node's bound token and nothing else; the kubelet's folder is one of its own. They can be stopped,
frozen and killed as any process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.agents import Nodes
from tests.e2e.control_plane import ControlPlane

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

POOL_SIZE = "6Gi"


@dataclass
class Program:
    """One of our verbs as a process that may be started anew."""

    arguments: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; not while it runs."""
        assert self.process is None
        environment = {**os.environ, "NODE_NAME": "unset"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tonnage", *self.arguments], stderr=log, env=environment
            )

    def freeze(self) -> None:
        """It does nothing any more, and nobody is told."""
        self._running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on where it was."""
        self._running.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, also while it is frozen. May be repeated."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """End it as an upgrade does; how it ended."""
        process, self.process = self._running, None
        process.terminate()
        return process.wait(timeout=60)

    def said(self) -> str:
        """All that it has logged."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        assert self.process.poll() is None, self.said()
        return self.process


@dataclass
class Agent:
    """A node's agent, with an image pool `scratch` of POOL_SIZE in a folder of its own."""

    plane: ControlPlane
    node: str
    folder: Path
    program: Program
    others: list[Program] = field(default_factory=list)

    @property
    def pool(self) -> Path:
        """Where its volumes lie."""
        return self.folder / "pool"

    @property
    def endpoint(self) -> str:
        """The CSI socket of its own driver."""
        return f"unix://{self.folder}/kubelet/plugins/{names.DRIVER}/csi.sock"

    def files(self, uid: str) -> list[str]:
        """What there is in the pool of the volume made for the claim of that uid."""
        return sorted(str(path.relative_to(self.pool)) for path in self.pool.rglob(f"*{uid}*"))

    def volumes(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `tonnage volumes`, of this driver, as an administrator."""
        action, *rest = arguments
        command = [sys.executable, "-m", "tonnage", "volumes", action, "--endpoint", self.endpoint, *rest]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    def orphans(self) -> list[str]:
        """Names of the volumes that `tonnage volumes orphans` tells of."""
        ended = self.volumes("orphans", "--kubeconfig", str(self.plane.kubeconfig), "-o", "json")
        assert ended.returncode == 0, ended.stderr
        return [volume["id"].rpartition("/")[2] for volume in json.loads(ended.stdout).get("volumes", [])]

    def free(self, storage_class: str = names.SCRATCH_CLASS) -> int | None:
        """Bytes that it publishes for a class, None for nothing."""
        return free(self.plane, self.node, storage_class)


def free(plane: ControlPlane, node: str, storage_class: str = names.SCRATCH_CLASS) -> int | None:
    """Bytes that a node publishes for a class, None for nothing."""
    for item in plane.get("-n", names.SYSTEM_NAMESPACE, "csistoragecapacities")["items"]:
        where = item.get("nodeTopology", {}).get("matchLabels", {}).get(names.TOPOLOGY_NODE)
        if (where, item["storageClassName"]) == (node, storage_class):
            return to_bytes(item["capacity"])
    return None


@contextmanager
def agent(nodes: Nodes, number: int, *flags: str, driver: bool = True) -> Iterator[Agent]:
    """The agent of a node that is there, as soon as it publishes its room. Afterwards nothing is left of it.

    driver False: the pool is not its own, so the caller starts what serves it; nothing is waited for.
    """
    node = nodes.name(number)
    folder = Path(tempfile.mkdtemp(prefix="tn"))  # short: a socket's path has at most 107 bytes
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    file = nodes.plane.write_kubeconfig(folder / "kubeconfig", nodes.tokens[node])
    pool = ["--pool", pool_text(folder / "pool")] if driver else []
    arguments = ["node", "--node-name", node, "--kubelet", f"{folder}/kubelet", "--kubeconfig", str(file)]
    namespace = ["--namespace", names.SYSTEM_NAMESPACE]
    made = Agent(nodes.plane, node, folder, Program((*arguments, *namespace, *pool, *flags), folder / "node.log"))
    try:
        if driver:
            stale = ("csistoragecapacities", "-l", f"{names.NODE_LABEL}={names.label_value(node)}")
            nodes.plane.kubectl("-n", names.SYSTEM_NAMESPACE, "delete", *stale)  # of an agent before it
            made.program.start()
            until(nodes.plane, f"{node} publishes its room", lambda: made.free() == to_bytes(POOL_SIZE))
        yield made
    except BaseException:
        print(made.program.said()[-6000:], *(p.said()[-3000:] for p in made.others), sep="\n")
        raise
    finally:
        for program in (made.program, *made.others):
            program.kill()
        shutil.rmtree(folder)


def pool_text(folder: Path) -> str:
    """A pool as --pool takes it, with room that does not hang on the machine's disk."""
    return f"image:{folder},name=scratch,rootfs=yes,keep=1Gi,size={POOL_SIZE}"


def point(agent: Agent, plane: ControlPlane, token: str) -> None:
    """The agent belongs to that control plane when it is started again."""
    plane.write_kubeconfig(agent.folder / "kubeconfig", token)


def events(plane: ControlPlane, namespace: str, name: str) -> list[tuple[str, str]]:
    """Reason and text of the Events about the object of that name."""
    found = plane.get("-n", namespace, "events", f"--field-selector=involvedObject.name={name}")["items"]
    return [(event["reason"], event["message"]) for event in found]


def until(plane: ControlPlane, what: str, holds: Callable[[], bool], *, seconds: float = 300) -> None:
    """Wait for something, long enough for a machine that does much else."""
    plane.until(what, holds, seconds=seconds)


def stays(what: str, holds: Callable[[], bool], *, seconds: float) -> None:
    """Something is so for a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert holds(), what
        time.sleep(0.2)
