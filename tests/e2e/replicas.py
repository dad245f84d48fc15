"""Processes of the verbs of which several replicas run and one works, with nothing but their own account's token."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.control_plane import ControlPlane

from tonnage.kubernetes.api import names


class Replicas:
    """Processes of one verb, called `tonnage-<verb>`, as its account and its Lease are. more: options of theirs."""

    def __init__(self, plane: ControlPlane, folder: Path, verb: str, *more: str) -> None:
        self._plane, self._folder, self._verb, self._more = plane, folder, verb, more
        self._name = f"tonnage-{verb}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """A replica of that name."""
        token = self._plane.kubectl("-n", names.SYSTEM_NAMESPACE, "create", "token", self._name).strip()
        file = self._folder / f"{name}.kubeconfig"
        self._plane.write_kubeconfig(file, token)
        command = [sys.executable, "-m", "tonnage", self._verb, "--kubeconfig", str(file), "--identity", name]
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*command, "--namespace", names.SYSTEM_NAMESPACE, *self._more], stderr=log
            )

    def kill(self, name: str) -> None:
        """End it at once: it gives nothing up."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def log(self, name: str) -> Path:
        """What it says."""
        return self._folder / f"{name}.log"

    def leader(self) -> str:
        """Who holds the Lease, "" for nobody."""
        leases = "/apis/coordination.k8s.io/v1/namespaces"
        found = self._plane.send("GET", f"{leases}/{names.SYSTEM_NAMESPACE}/leases/{self._name}")
        return str(found.body["spec"].get("holderIdentity", "")) if found.status == 200 else ""

    def end(self) -> None:
        """All of them."""
        for name in list(self.running):
            self.kill(name)
