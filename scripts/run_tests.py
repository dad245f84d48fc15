"""All tests in two lanes at once: those inside guest machines, which take one core and nothing else of this machine,
beside all others. Each lane is a pytest of its own; what the first one prints is shown when the other has ended.

    scripts/run_tests.py [PYTEST OPTION]...
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GUESTS = "uml or qemu"
_NO_TESTS = 5  # pytest's exit code when nothing was selected


def main(options: list[str]) -> int:
    """Run both lanes; 0 when both passed."""
    for folder in ("src", "tests"):  # guests see this tree: nothing in it changes while they run
        compileall.compile_dir(folder, quiet=2)
    pytest = [sys.executable, "-m", "pytest", *options]
    with tempfile.TemporaryFile() as output:
        guests = subprocess.Popen(
            [*pytest, "-m", GUESTS, "-p", "no:cacheprovider"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            others = subprocess.run([*pytest, "-m", f"not ({GUESTS})"], check=False).returncode
            inside = guests.wait()
        except BaseException:
            guests.terminate()
            guests.wait()
            raise
        print("\nInside guest machines:\n", flush=True)
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()
    failed = [lane for lane, code in (("guests", inside), ("machine", others)) if code not in (0, _NO_TESTS)]
    print(f"tests: {', '.join(failed)} FAILED" if failed else "tests: all lanes passed")
    return 1 if failed else 0


if __name__ == "__main__":
    if Path.cwd() != Path(__file__).resolve().parent.parent:
        sys.exit("run it in the repository's root: make test")
    sys.exit(main(sys.argv[1:]))
