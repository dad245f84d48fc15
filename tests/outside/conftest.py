"""Programs in Go that tests here run against a cluster: built once from pinned modules, kept outside the tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
_TAGS = {"promtool": "remove_all_sd"}
"""Build tags: of Prometheus its service discovery for all clouds is left out."""
_UNREACHABLE = (
    "dial tcp",
    "no such host",
    "403 Forbidden",
    "i/o timeout",
    "connection refused",
    "module lookup disabled",
    "requires go >=",
    "toolchain not available",
)


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Any]) -> Iterator[Any]:
    """Three nodes of 30716Mi with real volumes and containers, on a disk that may have less."""
    cluster = make_cluster("--nodes", "3", "--pool", "image,name=scratch,size=30716Mi,sparse=yes,overcommit=yes")
    cluster.said = cluster.up()
    yield cluster
    cluster.down("--purge")


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "tonnage" / "go-bin"


def _go() -> str | None:
    return shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")


def build(name: str) -> Path:
    """tests/outside/<name> as a program. Skips the test where Go or its modules cannot be had."""
    sources = sorted(p for p in (HERE / name).iterdir() if p.suffix in {".go", ".mod", ".sum"})
    tags = f"-tags={_TAGS[name]}" if name in _TAGS else ""
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources) + tags.encode()).hexdigest()[:16]
    program = _cache() / f"{name}-{digest}"
    if program.exists():
        return program
    go = _go()
    if go is None:
        pytest.skip(f"needs Go, or {program} built elsewhere")
    program.parent.mkdir(parents=True, exist_ok=True)
    unfinished = program.with_suffix(f".{os.getpid()}")
    what = "." if any(p.suffix == ".go" for p in sources) else "tool"  # without a program of our own: a module's
    command = [go, "build", "-mod=readonly", *filter(None, [tags]), "-o", str(unfinished), what]
    built = subprocess.run(command, cwd=HERE / name, capture_output=True, text=True, check=False)
    if any(word in built.stderr for word in _UNREACHABLE):
        pytest.skip(f"the Go modules of {name} cannot be had: {built.stderr.strip().splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    unfinished.rename(program)
    return program


@pytest.fixture(scope="session")
def go_program() -> Callable[[str], Path]:
    """Builds one of the programs beside this file; a first build takes minutes, later ones nothing."""
    return build
