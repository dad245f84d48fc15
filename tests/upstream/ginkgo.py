"""One run of the suite's binary by Ginkgo."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROCS = 4


@dataclass(frozen=True)
class Part:
    """A part of the suite. focus: a regular expression of names; skip: those left out; procs: how many run at once;
    must_pass: whether it failed where all were skipped."""

    name: str
    focus: str
    skip: Sequence[str]
    procs: int = PROCS
    must_pass: bool = False


def run(
    part: Part, suite: Path, reports: Path, kubeconfig: Path, left_out: Sequence[str], environment: Mapping[str, str]
) -> int:
    """Run a part; Ginkgo's exit code. Blocking.

    suite: folder of the programs. reports: has driver.yaml and registries.yaml, gets the log and the JUnit file.
    left_out: regular expressions of further tests that are skipped.
    """
    command = [
        str(suite / "ginkgo"),
        "--no-color",
        f"--procs={part.procs}",
        f"--focus={part.focus}",
        *(f"--skip={pattern}" for pattern in (*part.skip, *left_out)),
        f"--output-dir={reports}",
        f"--junit-report={part.name}.xml",
        "--timeout=3h",
        str(suite / "e2e-storage.test"),
        "--",
        f"--kubeconfig={kubeconfig}",
        "--provider=local",
        f"--storage.testdriver={reports / 'driver.yaml'}",
        "--disable-log-dump",
        "--num-nodes=2",
    ]
    variables = {**os.environ, "KUBE_TEST_REPO_LIST": str(reports / "registries.yaml"), **environment}
    with (reports / f"{part.name}.log").open("wb") as log:
        return subprocess.run(command, stdout=log, stderr=log, env=variables, check=False).returncode
