"""Programs in Go that tests run against tonnage: built by `make programs` from pinned modules, kept outside the tree."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from cluster.gobuild import Missing, Program, cache

HERE = Path(__file__).parent
NAMES = ("sanity", "clientgo", "helm", "helm4", "mockdriver", "promtool")
_FLAGS = {"promtool": ("-tags=remove_all_sd",)}
"""Of Prometheus its service discovery for all clouds is left out."""


def program(name: str) -> Program:
    """The program of the folder of that name."""
    sources = sorted(path for path in (HERE / name).iterdir() if path.suffix in {".go", ".mod", ".sum"})
    flags = _FLAGS.get(name, ())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + "".join(flags).encode())
    package = "." if any(path.suffix == ".go" for path in sources) else "tool"  # none of our own: the module's tool
    return Program(name, HERE / name, package, cache() / "go-bin" / f"{name}-{digest.hexdigest()[:16]}", flags)


def find(name: str) -> Path:
    """The built program. Raises Missing: tests never build."""
    found = program(name).path
    if not found.exists():
        raise Missing(f"{name} is not built (make programs)")
    return found


def need(name: str) -> Path:
    """The built program; skips the test where it is not built."""
    try:
        return find(name)
    except Missing as reason:
        pytest.skip(str(reason))
