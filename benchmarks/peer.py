"""The Go programs to measure against: each built once from its module, kept outside the tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HOSTPATH, PROVISIONER = "hostpath", "external-provisioner"
# Set by upstream's builds too: the sidecar refuses a driver without a version.
_FLAGS = ("-mod=readonly", "-ldflags=-X main.version=benchmark")


def program(module: str = HOSTPATH) -> Path | None:
    """csi-driver-host-path, or the external-provisioner; None where Go or its modules cannot be had."""
    folder = Path(__file__).parent / module
    digest = hashlib.sha256(
        b"".join(p.read_bytes() for p in sorted(folder.iterdir())) + str(_FLAGS).encode()
    ).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    built = base / "tonnage" / "go-bin" / f"{module}-{digest}"
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if built.exists() or go is None:
        return built if built.exists() else None
    built.parent.mkdir(parents=True, exist_ok=True)
    half = built.with_suffix(f".{os.getpid()}")
    ended = subprocess.run([go, "build", *_FLAGS, "-o", str(half), "tool"], cwd=folder, check=False)
    if ended.returncode != 0:
        return None
    half.rename(built)
    return built
