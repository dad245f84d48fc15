"""Programs in Go that tests run against tonnage: built by `make programs` from pinned modules, kept outside the tree."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from benchmarks.peer import peer
from cluster.gobuild import Program, cache, check

HERE = Path(__file__).parent
SIDECARS = ("csi-provisioner", "csi-attacher", "csi-resizer")
SNAPSHOTS = "snapshot-controller"
PEERS = (peer.HOSTPATH, peer.SNAPSHOTTER)
POPULATOR = "hello-populator"
VELERO = ("velero", "velero-plugin-for-aws")
"""Built by `make test-velero` alone: their modules are large."""
NAMES = (
    "sanity",
    "clientgo",
    "helm",
    "helm4",
    "mockdriver",
    "orchestrator",
    "promtool",
    SNAPSHOTS,
    POPULATOR,
    *SIDECARS,
    *PEERS,
)
_FOLDERS = {
    POPULATOR: HERE.parent.parent / "upstream" / "populator",
    **dict.fromkeys(SIDECARS, HERE / "sidecars"),
}
_FLAGS = {
    "promtool": ("-tags=remove_all_sd",),
    **dict.fromkeys((SNAPSHOTS, POPULATOR, *VELERO, *SIDECARS), ("-ldflags=-s -w",)),
}
"""Of Prometheus its service discovery for all clouds is left out; of the sidecars the symbols of debuggers."""


def program(name: str) -> Program:
    """The program of the folder of that name. The sidecars share a module, those of the benchmarks are shared with
    them, and the populator is that of Kubernetes' suite."""
    if name in PEERS:
        return peer.describe(name)
    folder = _FOLDERS.get(name, HERE / name)
    sources = sorted(path for path in folder.iterdir() if path.suffix in {".go", ".mod", ".sum"})
    flags = _FLAGS.get(name, ())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + "".join(flags).encode())
    package = "." if any(path.suffix == ".go" for path in sources) else "tool"  # none of our own: the module's tool
    if name in SIDECARS:
        package = _tools()[name]
    return Program(name, folder, package, cache() / "go-bin" / f"{name}-{digest.hexdigest()[:16]}", flags)


def _tools() -> dict[str, str]:
    """The sidecars' packages by name, as their module lists its tools."""
    listed = re.findall(r"^\t(\S+/cmd/(\S+))$", (HERE / "sidecars" / "go.mod").read_text(), re.MULTILINE)
    return {name: package for package, name in listed}


def sidecar_versions() -> dict[str, str]:
    """The version of each sidecar's module."""
    required = re.findall(r"^\t(\S+) (v\S+)", (HERE / "sidecars" / "go.mod").read_text(), re.MULTILINE)
    return {
        name: version
        for name, package in _tools().items()
        for module, version in required
        if package.startswith(f"{module}/")
    }


def find(name: str) -> Path:
    """The built program. Raises Missing: tests never build."""
    found = program(name)
    check([found], command="make test-velero" if name in VELERO else "make programs")
    return found.path
