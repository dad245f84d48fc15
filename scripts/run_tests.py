"""All tests in lanes at once: those inside guest machines, which take one core and nothing else of this machine, those
on real clusters, with and without kubelets, which mostly wait, and all others. Each lane is a pytest of its own; only
the last one's output is seen at once, that of the others at the end.

Up to five lanes share two cores. A few tests that failed there run a second time, alone: what fails again is at fault,
what passes is named, so that nobody takes it for well. More than a few are not run again.

    scripts/run_tests.py [PYTEST OPTION]...
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BESIDE = {"guests": "uml", "qemu": "qemu", "clusters": "e2e and not kubelets", "kubelets": "kubelets"}
"""Lanes in the background, with the tests they take by marker."""
OTHERS = "not e2e and not uml and not qemu"
_FAILED, _NO_TESTS = 1, 5  # pytest's exit codes: some tests failed, none was selected
_FEW = 8  # failed tests that are run again


def main(options: list[str]) -> int:
    """Run all lanes; 0 when all passed."""
    for folder in ("src", "tests"):  # guests see this tree: nothing in it changes while they run
        compileall.compile_dir(folder, quiet=2)
    pytest = [sys.executable, "-m", "pytest", *options]
    with tempfile.TemporaryDirectory(prefix="tonnage-tests-") as folder:
        notes = Path(folder)
        codes = _run_lanes(pytest, notes)
        failed = {lane for lane, code in codes.items() if code not in (0, _NO_TESTS)}
        told = {lane: _read(notes / lane) for lane in failed}
        again = sorted({test for tests in told.values() for test in tests})
        named = all(codes[lane] == _FAILED and told[lane] for lane in failed)  # none ended without saying what
        if failed and named and len(again) <= _FEW:
            print(f"\nAlone, those that failed: {', '.join(again)}\n", flush=True)
            if subprocess.run([*pytest, *again], check=False).returncode == 0:
                print(f"tests: all passed, but these failed at first, beside others: {', '.join(again)}")
                return 0
    print(f"tests: {', '.join(sorted(failed))} FAILED" if failed else "tests: all lanes passed")
    return 1 if failed else 0


def _run_lanes(pytest: list[str], notes: Path) -> dict[str, int]:
    """Each lane's exit code; the tests that failed are in notes, a file a lane."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    for lane, which in BESIDE.items():
        command = [*pytest, "-m", which, "-p", "no:cacheprovider", "--failed-to", str(notes / lane)]
        with (notes / f"{lane}.out").open("wb") as output:
            started[lane] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        machine = [*pytest, "-m", OTHERS, "--failed-to", str(notes / "machine")]
        codes = {"machine": subprocess.run(machine, check=False).returncode}
        codes |= {lane: process.wait() for lane, process in started.items()}
    except BaseException:
        for process in started.values():
            process.terminate()
        for process in started.values():
            process.wait()
        raise
    for lane in BESIDE:
        print(f"\nLane {lane}:\n", flush=True)
        with (notes / f"{lane}.out").open("rb") as output:
            shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()
    return codes


def _read(note: Path) -> list[str]:
    return note.read_text().splitlines() if note.exists() else []


if __name__ == "__main__":
    if Path.cwd() != Path(__file__).resolve().parent.parent:
        sys.exit("run it in the repository's root: make test")
    sys.exit(main(sys.argv[1:]))
