"""Kubernetes' External Storage tests, and the programs in Go that they need: built from pinned modules.

Folder `suite` has the module of the tests: the binary contains Kubernetes' own framework and tests, nothing else of its
suite. Folder `populator` has the one of the volume populator that a test runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from cluster.gobuild import Program, Say, build, cache
from cluster.programs import versioned

HERE = Path(__file__).parent
SUITE, POPULATOR = HERE / "suite", HERE / "populator"
PACKAGES: Mapping[str, tuple[Path, str]] = {
    "e2e-storage.test": (SUITE, "."),
    "ginkgo": (SUITE, "github.com/onsi/ginkgo/v2/ginkgo"),
    "agnhost": (SUITE, "k8s.io/kubernetes/test/images/agnhost"),
    "sshnode": (SUITE, "./sshnode"),
    "hello-populator": (POPULATOR, "tool"),
}
"""Program -> the folder of its module, and the package."""


def ensure(*, say: Say = print) -> Path:
    """Build what is missing; the folder with the programs. Blocking: the first build takes 10 to 30 minutes.

    Raises cluster.gobuild.Missing, RuntimeError. Idempotent.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in HERE.rglob("*") if path.suffix in {".go", ".mod", ".sum"}):
        digest.update(path.read_bytes())
    folder = cache() / "upstream-bin" / digest.hexdigest()[:16]
    linker = ("-ldflags", versioned(SUITE))
    programs = [
        Program(name, module, package, folder / name, linker, is_test=package == ".")
        for name, (module, package) in PACKAGES.items()
    ]
    build(programs, say=say)
    return folder
