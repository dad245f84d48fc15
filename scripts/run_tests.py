"""All tests in lanes at once: those inside guest machines, which take one core and nothing else of this machine, those
on real clusters, with and without kubelets, which mostly wait, and all others. Each lane is a pytest of its own; only
the last one's output is seen at once, that of the others at the end.

    scripts/run_tests.py [PYTEST OPTION]...
"""

from __future__ import annotations

import compileall
import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

GUESTS = "uml or qemu"
BESIDE = {"guests": GUESTS, "clusters": "e2e and not kubelets", "kubelets": "kubelets"}
"""Lanes in the background, with the tests they take by marker."""
OTHERS = f"not e2e and not ({GUESTS})"
_NO_TESTS = 5  # pytest's exit code when nothing was selected


def main(options: list[str]) -> int:
    """Run all lanes; 0 when all passed."""
    for folder in ("src", "tests"):  # guests see this tree: nothing in it changes while they run
        compileall.compile_dir(folder, quiet=2)
    pytest = [sys.executable, "-m", "pytest", *options]
    with contextlib.ExitStack() as files:
        outputs = {lane: files.enter_context(tempfile.TemporaryFile()) for lane in BESIDE}
        started = {
            lane: _start([*pytest, "-m", which, "-p", "no:cacheprovider"], outputs[lane])
            for lane, which in BESIDE.items()
        }
        try:
            codes = {"machine": subprocess.run([*pytest, "-m", OTHERS], check=False).returncode}
            codes |= {lane: process.wait() for lane, process in started.items()}
        except BaseException:
            for process in started.values():
                process.terminate()
            for process in started.values():
                process.wait()
            raise
        for lane, output in outputs.items():
            print(f"\nLane {lane}:\n", flush=True)
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
    failed = [lane for lane, code in codes.items() if code not in (0, _NO_TESTS)]
    print(f"tests: {', '.join(failed)} FAILED" if failed else "tests: all lanes passed")
    return 1 if failed else 0


def _start(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    if Path.cwd() != Path(__file__).resolve().parent.parent:
        sys.exit("run it in the repository's root: make test")
    sys.exit(main(sys.argv[1:]))
