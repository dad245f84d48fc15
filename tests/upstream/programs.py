"""Kubernetes' External Storage tests, and the programs in Go that they need: built from one pinned module.

Folder `suite` has the module: the test binary contains Kubernetes' own framework and tests, nothing else of its suite.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from cluster.gobuild import Program, Say, build, cache
from cluster.programs import versioned

SUITE = Path(__file__).parent / "suite"
PACKAGES: Mapping[str, str] = {
    "e2e-storage.test": ".",
    "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
    "agnhost": "k8s.io/kubernetes/test/images/agnhost",
    "sshnode": "./sshnode",
}


def ensure(*, say: Say = print) -> Path:
    """Build what is missing; the folder with the programs. Blocking: the first build takes 10 to 30 minutes.

    Raises cluster.gobuild.Missing, RuntimeError. Idempotent.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in SUITE.rglob("*") if path.suffix in {".go", ".mod", ".sum"}):
        digest.update(path.read_bytes())
    folder = cache() / "upstream-bin" / digest.hexdigest()[:16]
    linker = ("-ldflags", versioned(SUITE))
    build([Program(name, SUITE, what, folder / name, linker, what == ".") for name, what in PACKAGES.items()], say=say)
    return folder
