"""`python -m cluster up|down|exec`: a real Kubernetes for a while. `make cluster` and `make cluster-down` call it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster import image, network, programs
from cluster.control_plane import ControlPlane
from cluster.node import Node
from cluster.processes import Failed, Processes, until

PAUSE, BUSYBOX = "test.local/pause:1", "test.local/busybox:1"


def default_folder() -> Path:
    """Where a cluster lies when nobody says where."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "tonnage" / "cluster"


def up(
    folder: Path,
    nodes: int,
    *,
    arguments: Mapping[str, Sequence[str]] | None = None,
    images: Sequence[Path] = (),
    guests: int = 0,
) -> dict[str, object]:
    """Start a cluster; what is to be known of it, which is also in `folder`/cluster.json. Raises Failed, Missing.

    arguments: more flags by program. images: archives that pods may use, beside busybox. guests: nodes after the others
    that run elsewhere; they get certificates.
    """
    processes = Processes(folder / "processes")
    if [name for name in processes.names() if processes.pid(name)]:
        raise Failed(f"a cluster runs in {folder} already: `python -m cluster down` ends it")
    built = programs.find()
    busybox = programs.debian("busybox")
    for program in ("unshare", "nsenter", "ip"):
        programs.debian(program)
    made = _images(folder, busybox)
    addresses = network.take(folder, nodes + guests)
    plane = ControlPlane(folder, built, processes, network=addresses, arguments=arguments)
    found: dict[str, object] = {"folder": str(folder), "server": plane.server, "programs": str(built)}
    try:
        found["kubeconfig"] = str(plane.start())
        started = [Node(folder, n, built, processes, addresses) for n in range(1, nodes + 1)]
        if started:
            network.serve(addresses, processes, plane.port)
        for n in range(nodes + 1, nodes + guests + 1):
            Node(folder, n, built, processes, addresses).issue(plane.authority, plane.server)
        for node in started:
            flags = (arguments or {}).get("kubelet", ())
            node.start(plane.authority, plane.server, [*made, *images], flags=flags)
        _wait_usable(found["kubeconfig"], [node.name for node in started])
        found["nodes"] = {n.name: {"address": n.address, "enter": n.enter()} for n in started}
    except BaseException:
        down(folder, keep_logs=True)
        raise
    (folder / "cluster.json").write_text(json.dumps(found, indent=2))
    return found


def _wait_usable(kubeconfig: object, nodes: Sequence[str]) -> None:
    """Until pods can be made: the default account is there and all nodes are ready. Raises Failed."""

    def holds(*arguments: str) -> bool:
        command = [str(programs.kubectl()), f"--kubeconfig={kubeconfig}", *arguments]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    ready = ("wait", "--for=condition=Ready", "--timeout=60s", *(f"node/{name}" for name in nodes))
    if not until(lambda: holds("get", "serviceaccount", "default"), 60) or (nodes and not holds(*ready)):
        raise Failed("the cluster does not become usable: no default service account, or a node that is not ready")


def _images(folder: Path, busybox: Path) -> list[Path]:
    pause, box = folder / "pause.tar", folder / "busybox.tar"
    image.busybox_image(pause, PAUSE, busybox, command=("/bin/sleep", "2147483647"))
    image.busybox_image(box, BUSYBOX, busybox)
    return [pause, box]


def down(folder: Path, *, keep_logs: bool = False) -> None:
    """End a cluster and remove its files; nothing is left on the machine. May be repeated."""
    processes = Processes(folder / "processes")
    built = programs.folder()
    numbers = sorted({int(name.split("-")[1]) for name in processes.names() if name.startswith("node-")}, reverse=True)
    for number in numbers:
        Node(folder, number, built, processes, network.of(folder)).stop()
    network.release(folder, processes)
    for name in reversed(processes.names()):
        processes.end(name)
    if keep_logs:
        return
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description="A real Kubernetes on this machine.")
    parser.add_argument("--dir", type=Path, default=default_folder(), help="its folder")
    actions = parser.add_subparsers(dest="action", required=True)
    start = actions.add_parser("up", help="start one")
    start.add_argument("--nodes", type=int, default=2)
    start.add_argument(
        "--image",
        type=Path,
        action="append",
        default=[],
        metavar="ARCHIVE",
        help="an image that pods may use; repeatable",
    )
    actions.add_parser("down", help="end it")
    inside = actions.add_parser("exec", help="run a command inside a node")
    inside.add_argument("node")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    folder: Path = options.dir.absolute()
    try:
        if options.action == "up":
            programs.ensure()
            images = [archive.absolute() for archive in options.image]  # nodes have another working directory
            print(f"export KUBECONFIG={up(folder, options.nodes, images=images)['kubeconfig']}")
        elif options.action == "down":
            down(folder)
        else:
            enter = json.loads((folder / "cluster.json").read_text())["nodes"][options.node]["enter"]
            os.execvp(enter[0], [*enter, *options.command])
    except (Failed, programs.Missing) as failure:
        print(f"cluster: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
