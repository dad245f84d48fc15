"""Runs the tests in lanes at once, each a pytest of its own, and ends whatever they leave.

    python -m scripts.run_tests [--check | --rest | --changed] [PYTEST OPTION]...

Without any: what needs neither Go nor guests (`make test`). With --rest: guests, real clusters, programs in Go and
the other kills (`make test-all` runs both). With --changed: those of the rest that scripts/reach.py chooses for the
commits of this landing. With --check: unit tests and few kills (`make check`). Only the first lane's output is seen at
once, that of the others at the end. A failed test fails the run. Where `CI` is set, three at most first run again,
alone: one that passes three times there is named as unsteady, and holds up nobody else's change.
"""

from __future__ import annotations

import compileall
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts import reach

GUESTS_AND_GO = "not uml and not qemu and not e2e and not programs and not cinder"
_WAITING = (
    "tests/unit/node",
    "tests/unit/kubernetes/client",
    "tests/unit/tools/cli",
    "tests/unit/box/simulate",
    "tests/crash/kills",
)
_FEW = "--hypothesis-profile=check"
_FEWER = "--hypothesis-profile=test"
_REAL = ("--files-with", r"mark\.real")
_INNER = f"not real and not slow and {GUESTS_AND_GO}"
CHECK: Mapping[str, Sequence[str]] = {
    "box": ("tests/unit/box", "--ignore=tests/unit/box/simulate", "-m", _INNER, _FEW),
    "node": (*_WAITING, "-m", f"{_INNER} or kills", "--kills", "60", _FEW),
    "others": (
        *("tests/unit", "tests/docs", "tests/conformance", "tests/stories", "-m", _INNER, _FEW),
        *(f"--ignore={path}" for path in ("tests/unit/box", *_WAITING)),
    ),
}
"""Three lanes on two cores: tests wait for timers, locks and processes."""
_SOME_CHANCE = ("--kills", "200", "--cuts", "90", "--fuzz", "2000", "--pods", "60")
_AGENTS = ("tests/unit/node", "tests/unit/kubernetes/client", "tests/unit/box/simulate", "tests/unit/controller")
QUICK: Mapping[str, Sequence[str]] = {
    "real": (*_REAL, "--ignore=tests/crash", "--ignore=tests/unit", "-m", f"real and {GUESTS_AND_GO}", _FEWER),
    "parts": ("tests/unit", *_REAL, "-m", f"real and {GUESTS_AND_GO}", _FEWER),
    "crash": ("tests/crash", *_REAL, "-m", f"real and {GUESTS_AND_GO}", _FEWER, *_SOME_CHANCE),
    "agents": (*_AGENTS, "-m", f"not real and {GUESTS_AND_GO}", _FEWER),
    "unit": (*(f"--ignore={path}" for path in _AGENTS), "-m", f"not real and {GUESTS_AND_GO}", _FEWER),
}
"""Five lanes on two cores, of 2 to 6 minutes of processor: some wait while others work, and none is left alone at the
end."""
_MACHINE = ("--files-with", r"mark\.(programs|campaign)")
_MORE_CHANCE = ("--kills", "400", "--kill-seed", "1001", "--cut-seed", "1001", "--fuzz-seed", "1001")
REST: Mapping[str, Sequence[str]] = {
    "machine": (*_MACHINE, "-m", "(programs or campaign) and not uml and not qemu", *_MORE_CHANCE),
    "examples": ("--files-with", "hypothesis", "-m", f"hypothesis and {GUESTS_AND_GO}"),
    "slowness": ("--files-with", "virtual_time", "-m", "virtual_time", "--slowness-seed", "1", _FEW),
    "uml": ("--files-with", r"mark\.uml", "-m", "uml"),
    "qemu": ("--files-with", r"mark\.qemu", "-m", "qemu and not alone"),
    "clusters": ("--files-with", r"mark\.e2e", "-m", "e2e and not kubelets"),
    "kubelets": ("--files-with", r"mark\.e2e", "-m", "kubelets and not velero"),
}
"""Lane -> what chooses its tests."""
ALONE: Mapping[str, Sequence[str]] = {"alone": ("--files-with", r"mark\.alone", "-m", "alone")}
"""After the others: what takes minutes by itself, and beside them so long that leases and probes end."""
BARE = ("agents", "unit")
"""Lanes whose tests find no program of the machine but those that every machine has (scripts/bare.py)."""
UNSTEADY = 3
"""How many failed tests run again in CI, and how often each must pass: more than these are no coincidence."""
DISK = 3.0
"""GiB that the tests' temporary files need: without them tests fail one after the other, each for its own reason."""
LIMIT = 75 * 60.0
"""Seconds after which a lane is ended: no test hangs the run."""
_PASSED, _FAILED, _NO_TESTS = 0, 1, 5  # pytest's exit codes
_MARK = "TONNAGE_TEST_LANE"
"""Variable of the environment by which the processes of a lane are known."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass
class Lane:
    """A pytest. processor: seconds that it and the processes that it waited for took. code: its exit code. report: what
    it wrote of its tests (tests/conftest.py): names by outcome, failed ones with the reason. left: processes that were
    still there when it had ended, and were killed."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    begun: float
    ended: float = 0.0
    processor: float = 0.0
    code: int | None = None
    report: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    @property
    def output(self) -> Path:
        """What it printed."""
        return self.folder / f"{self.name}.out"

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong but failed tests, which the report names."""
        return not self.left and (self.code in (_PASSED, _NO_TESTS) or (self.code == _FAILED and bool(self.failed)))

    @property
    def failed(self) -> dict[str, str]:
        """Test -> the first words of what it failed with. A test that asks for a program where there is none never
        runs: that is a failure as well."""
        skipped = self.report.get("skipped", {}) if self.name in BARE else {}
        asks = {test: f"{why}: mark it real" for test, why in skipped.items() if "apt-get install" in why}
        return {**self.report.get("failed", {}), **asks}

    def row(self) -> str:
        """For the table at the end."""
        counts = ", ".join(f"{len(self.report.get(outcome, []))} {outcome}" for outcome in ("passed", "failed"))
        skipped = len(self.report.get("skipped", []))
        minutes = f"{(self.ended - self.begun) / 60:5.1f} min, {self.processor / 60:5.1f} of processor"
        return f"  {self.name:9} {minutes}  {counts}, {skipped} not run"


def main(arguments: list[str]) -> int:
    """Run all lanes; 0 when all passed."""
    for folder in ("src", "tests"):  # guests see this tree: nothing in it changes while they run
        compileall.compile_dir(folder, quiet=2)
    _adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(number, signal.default_int_handler)
    chosen, options = _chosen(arguments)
    if (free := _available()[1]) < DISK:
        folder = tempfile.gettempdir()
        print(f"tests: {folder} has {free:.1f} GiB free, they need {DISK:g}: free some, or set TMPDIR to another one")
        return 1
    with tempfile.TemporaryDirectory(prefix="tonnage-tests-") as temporary:
        lanes = [lane for some in chosen for lane in _run_lanes(some, options, Path(temporary))]
        print("\nTests:", *(lane.row() for lane in lanes), _detached(lanes), sep="\n")
        for lane in lanes:
            for what in lane.left:
                print(f"{lane.name}: left behind, and killed: {what}")
        failed = {test: reason for lane in lanes for test, reason in lane.failed.items()}
        good = all(lane.is_good for lane in lanes)
        unsteady = _unsteady(failed, options, Path(temporary)) if good and os.environ.get("CI") else {}
    failed = {test: reason for test, reason in failed.items() if test not in unsteady}
    if unsteady:
        print("unsteady (failed once, passed alone: a defect, find the race):", *_reasons(unsteady), sep="\n  ")
    if failed:
        print("failed:", *_reasons(failed), sep="\n  ")
    reasons = Counter(reason for lane in lanes for reason in lane.report.get("skipped", {}).values())
    if reasons:
        print("what was not run:", *(f"{count:4} x {reason}" for reason, count in reasons.most_common()), sep="\n  ")
    passed = sum(len(lane.report.get("passed", [])) for lane in lanes)
    print(f"{passed} passed, {len(failed)} failed, {reasons.total()} skipped", flush=True)
    return 0 if good and not failed else 1


def _chosen(arguments: Sequence[str]) -> tuple[list[Mapping[str, Sequence[str]]], Sequence[str]]:
    """Groups of lanes, one group after the other, and pytest's options."""
    match arguments:
        case ["--check", *options]:
            return [CHECK], options
        case ["--rest", *options]:
            return [REST, ALONE], options
        case ["--changed", *options]:
            choice = reach.since(reach.base())
            print(*choice.lines(), sep="\n", flush=True)
            lanes = choice.lanes()
            groups = (
                {name: (*tests, *lanes[name]) for name, tests in group.items() if name in lanes}
                for group in (REST, ALONE)
            )
            return [group for group in groups if group], options
    return [QUICK], arguments


def _detached(lanes: Sequence[Lane]) -> str:
    """For the table: what nobody waited for but we, such as detached boxes."""
    minutes = (_processor() - sum(lane.processor for lane in lanes)) / 60
    return f"  {'detached':9} {'':10} {minutes:5.1f} of processor"


def _processor() -> float:
    """Seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _unsteady(failed: Mapping[str, str], options: Sequence[str], folder: Path) -> dict[str, str]:
    """Those of a few failed tests that pass each time when they run again, alone; with the reason of the failure."""
    rest = dict(failed) if len(failed) <= UNSTEADY else {}
    for number in range(UNSTEADY):
        if rest:
            print(f"\nAgain, alone, {number + 1} of {UNSTEADY}: {', '.join(rest)}\n", flush=True)
            lane = _run_lanes({"again": sorted(rest)}, options, folder)[0]
            passed = lane.report.get("passed", []) if lane.is_good else []
            rest = {test: reason for test, reason in rest.items() if test in passed}
    return rest


def _reasons(failed: Mapping[str, str]) -> list[str]:
    return [f"{test}: {reason}" for test, reason in sorted(failed.items())]


def _run_lanes(chosen: Mapping[str, Sequence[str]], options: Sequence[str], folder: Path) -> list[Lane]:
    first = next(iter(chosen))
    lanes: list[Lane] = []
    least = _available()
    try:
        for name, tests in chosen.items():
            lanes.append(_start(name, [*tests, *options], folder, is_shown=name == first))
        while any(lane.code is None for lane in lanes):
            time.sleep(0.05)
            _reap_orphans({lane.process.pid for lane in lanes})
            for lane in lanes:
                _look(lane)
            least = tuple(map(min, least, _available()))
    finally:
        for lane in lanes:
            _end(lane)
    for lane in lanes[1:]:
        print(f"\nLane {lane.name}:\n", flush=True)
        with lane.output.open("rb") as output:
            shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()
    print("\nLeast that was available: {:.1f} GiB of memory, {:.1f} GiB of disk".format(*least), flush=True)
    return lanes


def _available() -> tuple[float, ...]:
    """GiB of memory and of the disk of temporary files: what a failure may come from that no test explains."""
    meminfo = Path("/proc/meminfo").read_text()
    memory = next(int(line.split()[1]) for line in meminfo.splitlines() if line.startswith("MemAvailable"))
    return memory / 2**20, shutil.disk_usage(tempfile.gettempdir()).free / 2**30


def _start(name: str, arguments: Sequence[str], folder: Path, *, is_shown: bool) -> Lane:
    report = folder / f"{name}.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-rfE"]
    command += ["--report-to", str(report), *arguments]
    if name in BARE:
        bare = folder / f"{name}.bin"
        bare.mkdir()
        command = [sys.executable, "-m", "scripts.bare", str(bare), *command]
    if os.geteuid() == 0:
        # A mount namespace of its own: a copy in another process' namespace keeps what is unmounted here busy.
        command = ["unshare", "--mount", "--propagation", "private", "--", *command]
    with (folder / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=None if is_shown else output,
            stderr=None if is_shown else subprocess.STDOUT,
            # Assertions are rewritten once, not by each lane in each run: that is two thirds of the collection.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", _MARK: f"{name}-{os.getpid()}"},
            preexec_fn=_interrupt_with_parent,  # there are no threads here
        )
    return Lane(name, folder, process, time.monotonic())


def _look(lane: Lane) -> None:
    """Note whether it has ended; end it when its time is up."""
    if lane.code is not None:
        return
    before = _processor()
    lane.code = lane.process.poll()
    if lane.code is not None:
        lane.processor = _processor() - before
    now = time.monotonic()
    if lane.code is None and now > lane.begun + LIMIT:
        running = lane.folder / f"{lane.name}.now"
        test = running.read_text() if running.exists() else "no test"
        print(f"lane {lane.name}: not done after {LIMIT / 60:.0f} min, while it ran {test}", flush=True)
        _end(lane)
    if lane.code is not None:
        lane.ended = now
        lane.left = _kill_left(lane)
        report = lane.folder / f"{lane.name}.json"
        lane.report = json.loads(report.read_text()) if report.exists() else {}


def _end(lane: Lane) -> None:
    """End it and all that it has started."""
    if lane.process.poll() is None:
        lane.process.send_signal(signal.SIGINT)  # as Ctrl-C: fixtures clean up
        with suppress(subprocess.TimeoutExpired):
            lane.process.wait(60)
        lane.process.kill()
        lane.process.wait()
        lane.code, lane.ended = lane.process.returncode, time.monotonic()
    _kill_left(lane)


def _kill_left(lane: Lane) -> list[str]:
    """Kill the processes that a lane has left; what they were."""
    left = []
    for pid, command in _processes(f"{_MARK}={lane.name}-{os.getpid()}"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            left.append(f"process {pid}, {command}")
    return left


def _reap_orphans(lanes: set[int]) -> None:
    """Reap what has ended and is no lane, as init would: some tests wait until a process is gone."""
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in lanes:
                return  # its Popen reaps it, in the same turn
            os.waitpid(ended.si_pid, 0)


def _processes(mark: str) -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _adopt_orphans() -> None:
    """Processes whose parent has ended become ours, not init's."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _interrupt_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


if __name__ == "__main__":
    if Path.cwd() != Path(__file__).resolve().parent.parent:
        sys.exit("run it in the repository's root: make test")
    sys.exit(main(sys.argv[1:]))
