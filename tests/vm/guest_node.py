"""Inside a guest that qemu.py booted with a network: a node, containerd and a kubelet, of a cluster outside.

    guest_node.py FOLDER NODE SERVER_PORT KUBELET_PORT IMAGE...

Connections to KUBELET_PORT of the guest's network come to the kubelet. FOLDER is the cluster's, seen through virtiofs; the node's own files are in memory. It ends when FOLDER/stop is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cluster import network, programs
from cluster.node import Node
from cluster.processes import Processes

OWN, GATEWAY, KUBELET = "10.0.2.15", "10.0.2.2", 10250
CGROUPS = Path("/sys/fs/cgroup")
PATIENCE = 900.0
"""Seconds for each program to start: a guest is ten times slower than the machine."""


def main(folder: Path, number: int, port: int, kubelet_port: int, images: list[Path]) -> None:
    """See the module. Raises what the node raises."""
    inside = folder / "guest"
    del os.environ["TMPDIR"]  # the guest's own is not there in the node's mount namespace, where runc would use it
    for words in ("disable-region all", "init-labels --force all", "enable-region all"):
        call("ndctl", *words.split())
    call("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(inside))
    call("mount", "-t", "cgroup2", "cgroup2", str(CGROUPS))
    controllers = (CGROUPS / "cgroup.controllers").read_text().split()
    (CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    for words in (
        "link set lo up",
        "link set eth0 up",
        f"addr add {OWN}/24 dev eth0",
        f"route add default via {GATEWAY}",
    ):
        call("ip", *words.split())
    shutil.copytree(folder / "pki", inside / "pki")
    processes, addresses = Processes(inside / "processes"), network.of(folder)
    call("ip", "addr", "add", f"{addresses.service}/32", "dev", "lo")
    node = Node(inside, number, programs.folder(), processes, addresses, patience=PATIENCE)
    forward = Path(network.__file__).with_name("forward.py")
    for name, source, target in (
        ("server", ("127.0.0.1", port), (GATEWAY, port)),
        ("service", (addresses.service, 443), (GATEWAY, port)),
        ("kubelet-port", (OWN, kubelet_port), (node.address, KUBELET)),
    ):
        ends = [str(word) for word in (*source, *target)]
        processes.start(name, [sys.executable, "-I", forward, *ends])
    node.run(images)
    print("the node runs", flush=True)
    while not (folder / "stop").exists():
        time.sleep(1)
    node.stop()


def call(*command: str) -> None:
    """Run a program. Raises CalledProcessError."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), [Path(word) for word in sys.argv[5:]])
