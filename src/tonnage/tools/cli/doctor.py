"""`tonnage doctor`: checks an installation on Kubernetes or a box; reports faults and remedies. Changes nothing.

Exit code 0: no fault, perhaps warnings; 1: faults.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from collections import Counter
from pathlib import Path
from typing import Any

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.node.config import driver as config_driver
from tonnage.node.config.node import NODE_FILE, NodeConfig, merge
from tonnage.tools.cli import listing, node
from tonnage.tools.cli.output import Output
from tonnage.tools.ops.doctor.finding import Finding, Level
from tonnage.tools.ops.doctor.run import examine, examine_box
from tonnage.tools.ops.local_box import LocalBox

_FILE = Path("/etc/tonnage/node.yaml")
"""Where an agent's pod has its node's file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    node.add_cluster_arguments(parser)
    parser.add_argument(
        "--namespace", default=os.environ.get("POD_NAMESPACE") or names.SYSTEM_NAMESPACE, metavar="NAME",
        help="the installation's (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path, metavar="FILE.yaml",
        help=f"on a node: its file, to check the machine as well (default in an agent's pod: {_FILE})",
    )  # fmt: skip
    parser.add_argument(
        "--node-name", default="", metavar="NAME", help="with --config; default: $NODE_NAME, else the host's"
    )
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")


def run(options: argparse.Namespace) -> int:
    """Run the checks and print findings; 1 when there are faults."""
    in_pod = options.kubeconfig is None and options.data is None and os.environ.get("KUBERNETES_SERVICE_HOST")
    access, box = (node.access_of(None), None) if in_pod else node.cluster_of(options)
    machine = _machine(options)

    async def connected() -> list[Finding]:
        async with Client(HttpTransport(access, user_agent="tonnage-doctor")) as client:
            return await look(client, options.namespace, machine, box)

    findings = asyncio.run(connected())
    show(options.output, findings)
    return 1 if any(finding.level is Level.FAIL for finding in findings) else 0


async def look(
    client: Client, namespace: str, machine: NodeConfig | None, box: LocalBox | None = None
) -> list[Finding]:
    """The findings. box: where the cluster is one of this machine. Raises: as examine()."""
    if b"+tonnage" in await client.read("/version"):
        return await examine_box(client, box, clock=RealClock())
    return await examine(client, namespace, clock=RealClock(), node=machine)


def _machine(options: argparse.Namespace) -> NodeConfig | None:
    """The node that this machine is, None for a workstation."""
    path = options.config or (_FILE if os.environ.get("NODE_NAME") and _FILE.exists() else None)
    if path is None:
        return None
    file = config_driver.load(path, NODE_FILE)
    given = {"namespace": options.namespace, "node_name": options.node_name}
    return merge(file, given, config_driver.pools_of(file, str(path)), node=socket.gethostname())


def show(form: str, findings: list[Finding]) -> None:
    """Print a table with the next step below each line that is not ok, or a document."""
    counts = Counter(finding.level for finding in findings)
    if form != "table":
        document: dict[str, Any] = {"faults": counts[Level.FAIL], "warnings": counts[Level.WARN], "findings": findings}
        print(listing.text(form, document), end="")
        return
    out = Output()
    out.table(("", "CHECK", "WHAT", "FOUND"), [(f.level, f.check, f.about, f.text) for f in findings])
    todo = [finding for finding in findings if finding.todo]
    if todo:
        out.title("What to do")
    for finding in todo:
        out.line(f"  {finding.level} {finding.about}: {finding.todo}")
    faults, warnings = counts[Level.FAIL], counts[Level.WARN]
    healthy = "no faults, see the warnings" if warnings else "no problems found"
    if faults:
        healthy = "the first fault is most often the cause"
    out.line(f"{faults} fault{'s' * (faults != 1)}, {warnings} warning{'s' * (warnings != 1)}: {healthy}")
