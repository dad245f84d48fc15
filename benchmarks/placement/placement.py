"""`python -m benchmarks placement [--quick] [--only NAME,...]`: what placement costs, and that nothing is misplaced.

Each case runs its stacks one after the other on the same real control plane and prints a table: what was measured,
what stands beside it from the same run, their ratio, and the goal. Everything shares one machine, so ratios tell more
than rates. --quick takes fewer pods and nodes: goals that are rates are then shown, but mean little.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from benchmarks.figure import Figure, render
from benchmarks.placement import cases
from benchmarks.placement.messages import messages
from benchmarks.placement.scheduling import five_thousand, thousand
from cluster import programs
from cluster.processes import Failed

from tonnage.base.observe import log as logs


class Case(Protocol):
    """Runs a case; its docstring is its title."""

    def __call__(self, *, quick: bool) -> Awaitable[list[Figure]]:
        """Raises Missing, FileNotFoundError where a program cannot be had; Failed."""


CASES: Mapping[str, Case] = {
    "box": cases.box,
    "ten": cases.ten,
    "exact": cases.exact,
    "hundred": cases.hundred,
    "storm": cases.storm,
    "paced": cases.paced,
    "fast": cases.fast,
    "messages": messages,
    "thousand": thousand,
    "five-thousand": five_thousand,
}


def main(words: Sequence[str]) -> int:
    """Run the chosen cases and print their tables; 1 when a goal was missed or a case could not be run."""
    parser = argparse.ArgumentParser(prog="benchmarks placement", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer pods and nodes")
    parser.add_argument("--only", default=",".join(CASES), metavar="NAME,...", help=f"of {', '.join(CASES)}")
    parser.add_argument("--log-level", default="warning", choices=("info", "warning", "error"))
    options = parser.parse_args(words)
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    logs.setup(options.log_level, as_json=False)
    results = [_show(name, quick=options.quick) for name in chosen]
    return 0 if all(results) else 1


def _show(name: str, *, quick: bool) -> bool:
    """Run one case and print its table; whether all its goals were reached."""
    began = time.monotonic()
    try:
        rows = asyncio.run(_run(CASES[name], quick=quick))
    except (programs.Missing, FileNotFoundError, Failed, TimeoutError) as reason:
        print(f"\n{name}: not measured: {reason or 'it took too long'}", file=sys.stderr, flush=True)
        return False
    about = " ".join(str(CASES[name].__doc__).split("\n\n")[0].split())
    size = ", quick form" if quick else ""
    print(render(f"{name}{size} ({time.monotonic() - began:.0f} s): {about}", rows), flush=True)
    return not any(row.missed for row in rows)


async def _run(case: Case, *, quick: bool) -> list[Figure]:
    return await case(quick=quick)
