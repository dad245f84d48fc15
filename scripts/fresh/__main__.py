"""Runs the README's commands as a stranger would type them, in a bare Debian 12 and 13: `make fresh`.

    python -m scripts.fresh [--debian 12|13]... [--user] [demo|test]...

Without commands: `make demo` and `make test` as root, and the demo as a user without root. --user: the latter alone.
Each command runs in a fresh copy. It runs what is committed. Ends with 0 when all is well, 1 when something failed or
was left behind, 2 when this machine cannot do it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.gobuild import Missing, tell
from scripts.fresh import base, system
from scripts.fresh.inside import Plan, Result, Step

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "fresh"
_PROGRAMS = ("unshare", "mount", "pivot_root", "losetup", "mke2fs", "git", "apt-config")
_TAIL = 50
_NOT_RUN = re.compile(r"^what was not run:\n((?: +\d+ x .*\n)+)", re.MULTILINE)
_COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
_IN_MEMORY = (13,)


@dataclass(frozen=True)
class Row:
    """What the table says of one command."""

    system: str
    result: Result
    log: Path

    @property
    def problem(self) -> str:
        """What is wrong with it, "" for nothing."""
        step, code = self.result.step, self.result.code
        if self.result.left:
            return "left behind: " + "; ".join(self.result.left)
        if step.rejection:
            is_told = step.rejection in self.result.output and "Traceback" not in self.result.output
            return "" if code and is_told else f"exit status {code}; it had to end with: {step.rejection}"
        return f"exit status {code}" if code else ""

    @property
    def outcome(self) -> str:
        """One word."""
        if self.problem:
            return "FAILED"
        return "rejected" if self.result.step.rejection else "passed"

    def cells(self) -> list[str]:
        """The row of the table."""
        result = self.result
        counts = _COUNTS.findall(result.output)
        return [
            self.system,
            result.step.command,
            result.step.user or "root",
            f"{result.seconds:.0f}",
            f"{result.venv:.0f}",
            f"{result.packages:.0f}",
            *(counts[-1] if counts else ("", "", "")),
            self.outcome,
        ]


HEADER = ["system", "command", "as", "s", ".venv MB", "packages MB", "passed", "failed", "skipped", "result"]


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as text, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def not_run(output: str) -> str:
    """What scripts/run_tests.py says at its end of skipped tests, reason by reason; "" for none."""
    found = _NOT_RUN.search(output)
    return found[1].rstrip() if found else ""


def plans(commands: Sequence[str], *, as_user: bool) -> dict[str, list[Step]]:
    """Name -> steps that share one fresh copy."""
    clone = "git clone -q /srv/tonnage.git tonnage"
    chosen = {
        f"root-{command}": [Step(clone, is_told=False), Step(f"make {command}", "tonnage")] for command in commands
    }
    if as_user:
        chosen["user-demo"] = [
            Step(clone, user=base.USER, is_told=False),
            Step("make demo", "tonnage", base.USER, rejection="apt-get install python3-venv"),
            Step("apt-get update -qq && apt-get install -y -qq python3-venv", is_told=False),
            Step("make demo", "tonnage", base.USER),
            Step(".venv/bin/tonnage demo --pool fake --runtime none", "tonnage", base.USER),
        ]
    return chosen


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line; both systems and everything where it names none."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.fresh", description="The README's commands in a bare Debian."
    )
    parser.add_argument("--debian", type=int, choices=sorted(base.CODENAMES), action="append")
    parser.add_argument("--user", action="store_true", help="the demo as a user without root")
    parser.add_argument("commands", nargs="*", metavar="demo|test")
    parsed = parser.parse_args(words)
    if unknown := set(parsed.commands) - {"demo", "test"}:
        parser.error(f"neither demo nor test: {', '.join(sorted(unknown))}")
    if not parsed.commands and not parsed.user:
        parsed.commands, parsed.user = ["demo", "test"], True
    parsed.debian = parsed.debian or sorted(base.CODENAMES)
    return parsed


def check_machine() -> None:
    """Raises Missing where this machine cannot run a bare system."""
    if os.geteuid():
        raise Missing("make fresh: it mounts file systems, which takes root; run: sudo make fresh")
    if missing := [program for program in _PROGRAMS if not shutil.which(program)]:
        raise Missing(
            f"make fresh: not installed: {', '.join(missing)}; it needs Debian's git, util-linux, e2fsprogs and apt"
        )
    if not Path("/dev/loop-control").exists():
        raise Missing("make fresh: this machine has no loop devices (/dev/loop-control); run: modprobe loop")


def main(words: Sequence[str]) -> int:
    """Run what was chosen and print the table; the exit status."""
    chosen = arguments(words)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(number, signal.default_int_handler)
    rows: list[Row] = []
    try:
        check_machine()
        if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=False).stdout:
            tell("fresh: this tree has changes that are not committed; what is committed is run")
        machine = base.machine_sources(Path("/etc/apt"))
        for number in chosen.debian:
            rows += _run_system(number, base.bare_sources(machine, number), plans(chosen.commands, as_user=chosen.user))
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    except RuntimeError as failure:
        print(failure, file=sys.stderr)
        _report(rows)
        return 1
    except KeyboardInterrupt:
        print("make fresh: interrupted; nothing is left", file=sys.stderr)
        return 130
    return _report(rows)


def _run_system(number: int, sources: list[base.Source], chosen: dict[str, list[Step]]) -> Iterator[Row]:
    base.check_network(sources[0])
    image = base.ensure(number, sources[0])
    for name, steps in chosen.items():
        yield from _run_plan(number, name, image, sources, steps)


def _run_plan(number: int, name: str, image: Path, sources: list[base.Source], steps: list[Step]) -> Iterator[Row]:
    log = LOGS / f"debian-{number}-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)

    def tell_begin(step: Step) -> None:
        tell(f"fresh: Debian {number}, {step.user or 'root'}: {step.command} (output: {log})")

    with system.fresh_copy(image) as copy:
        plan = Plan(
            image=str(copy),
            repository=str(ROOT),
            log=str(log),
            steps=steps,
            files=system.network_files(os.environ, sources),
            environment=system.network_environment(os.environ),
            is_tmp_in_memory=number in _IN_MEMORY,
        )
        python, results = system.run(plan, tell_begin)
    for result in results:
        if result.step.is_told or result.code:
            yield Row(f"Debian {number}, {python}", result, log)


def _report(rows: Sequence[Row]) -> int:
    for row in rows:
        if row.problem:
            tail = row.result.output.splitlines()[-_TAIL:]
            print(
                f"\n{row.system}: {row.result.step.command}: {row.problem}; all of {row.log} ends:", *tail, sep="\n  "
            )
        if reasons := not_run(row.result.output):
            print(f"\n{row.system}: {row.result.step.command} did not run:", reasons, sep="\n")
    print("", table([HEADER, *(row.cells() for row in rows)]), sep="\n")
    return 1 if any(row.problem for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
