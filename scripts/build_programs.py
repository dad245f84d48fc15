"""Builds the programs in Go that tests run and downloads the kernel of the QEMU guests: `make programs`.

    python -m scripts.build_programs [velero | kubernetes]

With a word, only what `make test-velero` runs, or Kubernetes of the release that TONNAGE_KUBERNETES names.

Tests only find them. Ends with 1 where something cannot be had; the tests that need it are then listed as not run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from cluster import programs
from cluster.gobuild import Missing, build
from tests.integration.third_party.programs import NAMES, VELERO, program

GUESTS = ("uml", "qemu")


def main() -> int:
    """Get everything that can be had; 0 when that is all."""
    begun = time.monotonic()
    missing = []
    names, guests = {"velero": (VELERO, ()), "kubernetes": ((), ())}.get(" ".join(sys.argv[1:]), (NAMES, GUESTS))
    for step in (lambda: programs.ensure(say=_say), lambda: build([program(name) for name in names], say=_say)):
        try:
            step()
        except (Missing, RuntimeError) as failure:
            missing.append(str(failure))
    missing += filter(None, map(_guest, guests))
    for reason in missing:
        _say(f"programs: not there: {reason}")
    _say(f"programs: {'not all' if missing else 'all'} ready after {(time.monotonic() - begun) / 60:.1f} min")
    return 1 if missing else 0


def _guest(name: str) -> str:
    """Why there is no guest of that kind, "" where there is; gets what it needs."""
    runner = Path(__file__).parent.parent / "tests" / "vm" / f"{name}.py"
    return subprocess.run(
        [sys.executable, runner, "--check"], capture_output=True, text=True, check=True
    ).stdout.strip()


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
