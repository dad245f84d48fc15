"""Pins a release of Kubernetes for `make test-compat`: writes its Go module into cluster/modules.

    python -m scripts.pin_kubernetes 1.35.4 [GO]

The versions are those of the release's own go.mod, so its programs are the ones that upstream builds. Go adds the
checksums. GO is the toolchain for a release that needs a newer one than this machine has, as go1.27.4; Go downloads it.
Needs Go and its module proxy. May be repeated.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from cluster.programs import MODULES

SOURCE = "k8s.io/kubernetes"
_VERSION = re.compile(r"(1\.\d+)\.\d+(-[a-z]+\.\d+)?")
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")


def main(version: str, toolchain: str = "") -> int:
    """Write go.mod and go.sum of that release; 1 where a module of it cannot be had, 2 for what is no version."""
    found = _VERSION.fullmatch(version)
    if found is None:
        print(f"Kubernetes {version[:40]!r}: not a version; give one as 1.35.4", file=sys.stderr)
        return 2
    folder = MODULES / f"kubernetes-{found[1]}"
    try:
        described = json.loads(_go(MODULES, "mod", "download", "-json", f"{SOURCE}@v{version}"))
        folder.mkdir(exist_ok=True)
        (folder / "go.mod").write_text(go_mod(Path(described["GoMod"]).read_text(), version, toolchain))
        (folder / "go.sum").write_text("")
        _go(folder, "list", "-mod=mod", "-deps", "tool")
    except subprocess.CalledProcessError as failure:
        print(f"Kubernetes {version}: not pinned: {(failure.stderr or failure.stdout).strip()[-500:]}", file=sys.stderr)
        return 1
    return 0


def go_mod(upstream: str, version: str, toolchain: str = "") -> str:
    """The go.mod of our module. upstream: the text of the release's own.

    Upstream replaces its staging modules, version v0.0.0 there, by folders; here they have the version of the release.
    """
    required = [
        line.split()[:2]
        for block in re.findall(r"^require \(\n(.*?)^\)", upstream, re.M | re.S)
        for line in block.splitlines()
        if line.strip()
    ]
    staged_version = f"v0.{version.partition('.')[2]}"
    staged = sorted(name for name, pinned in required if name.startswith("k8s.io/") and pinned == "v0.0.0")
    requires = [(SOURCE, f"v{version}"), *((n, staged_version if n in staged else v) for n, v in required)]
    return "\n".join(
        [
            "module tonnage.dev/cluster/kubernetes\n",
            "go 1.26.0\n",
            *([f"toolchain {toolchain}\n"] if toolchain else []),
            _block("tool", [f"{SOURCE}/cmd/{name}" for name in PROGRAMS]),
            _block("require", sorted(f"{name} {pinned} // indirect" for name, pinned in requires)),
            _block("replace", [f"{name} => {name} {staged_version}" for name in staged]),
        ]
    )


def _block(word: str, lines: list[str]) -> str:
    return f"{word} (\n" + "".join(f"\t{line}\n" for line in lines) + ")\n"


def _go(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "GOTOOLCHAIN": "auto"}
    return subprocess.run(
        ["go", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
