"""Runs the end-to-end tests on another release of Kubernetes: `make test-compat KUBERNETES=1.35`.

    python -m scripts.compat 1.35 [PYTEST ARGUMENT ...]

After a run of all tests, the row of docs/compatibility.md is written; with arguments, it is only printed. Ends
with 1 if a test fails, with 2 if the release cannot be built here or the tests do not begin.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from cluster import programs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
TESTS = ("-q", "-m", "e2e and not velero", "tests/e2e")


@dataclass(frozen=True)
class Outcome:
    """What a run of pytest came to. failed: errors of set-up and of teardown too."""

    passed: int
    failed: int
    skipped: int
    minutes: float


def main(release: str, *arguments: str) -> int:
    """Build the release's programs, run the tests, and write the row."""
    environment = {**os.environ, programs.CHOICE: release}
    build = [sys.executable, "-m", "scripts.build_programs", "kubernetes"]
    if subprocess.run(build, env=environment, cwd=ROOT, check=False).returncode:
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *TESTS, f"--junitxml={report}", *arguments]
        # In a mount namespace of its own, as the lanes of the tests: a copy of a mount elsewhere keeps a device busy.
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", *command], env=environment, cwd=ROOT, check=False
        )
        if not report.exists():
            print(f"Kubernetes {release}: the tests did not begin: see the output above", file=sys.stderr)
            return 2
        outcome = read(report)
    version = programs.version(programs.MODULES / f"kubernetes-{release}")
    written = row(release, version, outcome, today=datetime.datetime.now(datetime.UTC).date(), commit=_commit())
    print(written)
    if not arguments:
        PAGE.write_text(with_row(PAGE.read_text(), written))
    return 1 if outcome.failed or not outcome.passed else 0


def read(report: Path) -> Outcome:
    """The outcome in a report of pytest in JUnit's format."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    tests, failed, errors, skipped = (int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped"))
    return Outcome(tests - failed - errors - skipped, failed + errors, skipped, float(suite.attrib["time"]) / 60)


def row(release: str, version: str, outcome: Outcome, *, today: datetime.date, commit: str) -> str:
    """The release's row of the table."""
    counts = f"{outcome.passed} | {outcome.failed} | {outcome.skipped} | {outcome.minutes:.0f}"
    return f"| {release} | {version} | {today} | {commit} | {counts} |"


def with_row(page: str, written: str) -> str:
    """The page with that row in place of its release's former one, or as the table's first. Newest release first."""
    head = re.search(r"^\| release \| version \|.*\n\| ---.*\n", page, re.M)
    assert head, "the page has no table of results"
    table = re.match(r"(\|.*\n)*", page[head.end() :])
    assert table
    kept = [line for line in table[0].splitlines() if _release(line) != _release(written)]
    lines = sorted([*kept, written], key=_release, reverse=True)
    return page[: head.end()] + "".join(f"{line}\n" for line in lines) + page[head.end() + table.end() :]


def _release(line: str) -> tuple[int, ...]:
    return tuple(map(int, line.split("|")[1].strip().split(".")))


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
