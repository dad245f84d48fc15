"""`python -m tests.upstream.remote FOLDER NUMBER COMMAND`: what a test sends to a node by ssh, run on that node.

Its kubelet is no unit of systemd: `systemctl start|stop|restart|show kubelet` is done here, anything else by a shell in
the node's namespaces. Ends with the command's exit code.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cluster import network, programs
from cluster.node import Node
from cluster.processes import Processes

_SYSTEMCTL = re.compile(r"systemctl (start|stop|restart|show) kubelet(?:\.service)?(?: --.*)?")


def kubelet_verb(command: str) -> str:
    """Return what a command asks of systemd for the kubelet: start, stop, restart or show; "" for any other command."""
    found = _SYSTEMCTL.fullmatch(command.removeprefix("sudo "))
    return found[1] if found is not None else ""


def main(folder: Path, number: int, command: str) -> int:
    """Run the command. Raises Failed where the kubelet does not start."""
    processes = Processes(folder / "processes")
    node = Node(folder, number, programs.folder(), processes, network.of(folder))
    command = command.removeprefix("sudo ")  # whoever comes here is root
    verb = kubelet_verb(command)
    if not verb:
        return subprocess.run([*node.enter(), "sh", "-c", command], check=False).returncode
    runs = processes.pid(f"{node.name}-kubelet") is not None
    if verb == "show":
        print("active" if runs else "inactive")
    if runs and verb in ("stop", "restart"):
        node.stop_kubelet()
    if verb == "restart" or (verb == "start" and not runs):
        node.start_kubelet()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
