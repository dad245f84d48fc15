"""The Go programs to measure against: each built once from its module, kept outside the tree."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cluster.gobuild import Missing, Program, build, cache

HOSTPATH, PROVISIONER, SNAPSHOTTER = "hostpath", "external-provisioner", "csi-snapshotter"
# Set by upstream's builds too: the sidecar rejects a driver without a version.
_FLAGS = ("-ldflags=-X main.version=benchmark",)


def describe(module: str) -> Program:
    """The program that a module's folder pins."""
    folder = Path(__file__).parent / module
    sources = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    digest = hashlib.sha256(sources + str(_FLAGS).encode()).hexdigest()[:16]
    return Program(module, folder, "tool", cache() / "go-bin" / f"{module}-{digest}", _FLAGS)


def program(module: str = HOSTPATH) -> Path | None:
    """csi-driver-host-path, or a sidecar; None where Go or its modules cannot be had. Blocking."""
    built = describe(module)
    try:
        build([built])
    except (Missing, RuntimeError):
        return None
    return built.path
