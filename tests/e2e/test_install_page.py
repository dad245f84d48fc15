"""The command blocks of docs/install.md run on two real kubelets, in order, and print what the page shows.

tonnage is installed there already, from the chart. So objects of the page's other variants are only sent to the API
server as a dry run, and what sets up the machine or needs a registry is left out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import programs
from cluster.__main__ import BUSYBOX
from tests.docs.pages import READS, commands
from tests.e2e.control_plane import helm_program
from tests.e2e.machines import SYSTEM, Machines

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
LIMIT = 300.0
NOT_HERE = re.compile(r"make |export |skopeo |docker |scp |ssh|sha256sum |.*tonnage-0\.2\.0")
ON_THIS_CLUSTER = (
    (r"^(tonnage manifests .*)\| kubectl apply", r"\1| kubectl apply --dry-run=server"),
    (r" \.\.\. \|", " |"),
    (r"^kubectl create namespace", "kubectl create --dry-run=client namespace"),
    (
        r"^helm install (.*)",
        rf"helm template --kube-version {programs.version()} \1 | kubectl apply --dry-run=server -f -",
    ),
    (r"^kubectl label node big-1 big-2", "kubectl label --dry-run=server node node-1 node-2"),
    (r"^kubectl apply -f (examples/\S+)", rf"sed s,busybox,{BUSYBOX}, \1 | kubectl apply -f -"),
)


def test_the_page(machines: Machines, tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(machines.plane.kubeconfig), "HOME": str(tmp_path)}
    environment["PATH"] = f"{_programs(machines, tmp_path)}:{environment['PATH']}"
    count = 0
    with machines.removed("my-app"):
        for command in commands(ROOT / "docs" / "install.md"):
            text = command.text
            for pattern, here in ON_THIS_CLUSTER:
                text = re.sub(pattern, here, text)
            if NOT_HERE.match(text) or (text.startswith("helm ") and helm_program() is None):
                continue
            deadline = time.monotonic() + LIMIT
            while True:
                ended = subprocess.run(
                    ["bash", "-o", "pipefail", "-c", text],
                    cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
                )  # fmt: skip
                shown = ended.returncode == 0 and command.is_shown_by(ended.stdout)
                if shown or not READS.match(text) or time.monotonic() > deadline:
                    break
                time.sleep(0.5)
            assert shown, f"$ {text}\n{ended.stdout}{ended.stderr}\nthe page shows:\n{command.shown}"
            count += 1
        machines.plane.kubectl("-n", SYSTEM, "rollout", "status", "daemonset/tonnage-node", "--timeout=300s")
        machines.plane.until("both agents are ready", lambda: set(machines.agents()) == set(machines.names))
    assert count > 10


def _programs(machines: Machines, folder: Path) -> Path:
    """A folder with the programs that the page names."""
    python = f"exec {shlex.quote(sys.executable)} -m tonnage"
    starts = {"tonnage": python, "kubectl": f"exec {machines.plane.program}", "helm": f"exec {helm_program()}"}
    for name, start in starts.items():
        (folder / name).write_text(f'#!/bin/sh\n{start} "$@"\n')
        (folder / name).chmod(0o755)
    return folder
