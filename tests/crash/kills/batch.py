"""Campaigns as copies of one process that has everything loaded: a new interpreter takes most of a second of processor time.

python -m tests.crash.kills.batch FOLDER: reads JSON, name -> module of this package and its arguments. Runs as many at a time
as the machine has processors, each with its output in FOLDER, and tells the exit code of each that has ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.crash.kills import campaign, power, store_power

ROOT = Path(__file__).parents[3]
MAINS = {"campaign": campaign.main, "power": power.main, "store_power": store_power.main}
_PR_SET_PDEATHSIG = 1


class Batch:
    """Runs campaigns ahead of the tests that wait for them. prefix: what the process is started by."""

    def __init__(self, folder: Path, jobs: Mapping[str, Sequence[str]], *, prefix: Sequence[str] = ()) -> None:
        self._folder = folder
        self._codes: dict[str, int] = {}
        command = [*prefix, sys.executable, "-m", __name__, str(folder)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        with self._process.stdin as file:
            json.dump(jobs, file)

    def ended(self, name: str) -> subprocess.CompletedProcess[str]:
        """How a campaign ended, and what it said. Blocking."""
        assert self._process.stdout is not None
        while name not in self._codes:
            line = self._process.stdout.readline()
            assert line, f"all has ended without {name}"
            self._codes |= json.loads(line)
        said = [path.read_text(errors="replace") for path in _outputs(self._folder, name)]
        return subprocess.CompletedProcess(name, self._codes[name], *said)

    def end(self) -> None:
        """Kill what still runs."""
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def _outputs(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.{stream}" for stream in ("out", "err")]


def _start(words: Sequence[str], outputs: Sequence[Path]) -> int:
    """Id of the copy that runs it."""
    if child := os.fork():
        return child
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number, path in enumerate(outputs, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = MAINS[words[0]](list(words[1:]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(folder: Path) -> None:
    """The command line."""
    waiting = list(json.load(sys.stdin).items())
    running: dict[int, str] = {}
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            name, words = waiting.pop(0)
            running[_start(words, _outputs(folder, name))] = name
        child, status = os.wait()
        print(json.dumps({running.pop(child): os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
