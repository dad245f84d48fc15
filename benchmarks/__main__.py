"""`make bench`, or `python -m benchmarks [NAME...] [--runs N]`: the figures that the README claims, as tables.

Each row: what was measured, the median of the runs, the target, and whether it was met. Times on a shared machine are
noisy: run it on a quiet one. `python -m benchmarks placement` has tables and options of its own (placement.py).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import sys
from collections.abc import Awaitable, Callable

from benchmarks import placement
from benchmarks.figure import Figure

NAMES = ("apiserver", "requests", "start", "burst", "idle", "driver", "lvm", "kubernetes", "placement_scale")


def main() -> int:
    """Run the chosen benchmarks and print their figures; 1 when a target was missed."""
    if sys.argv[1:2] == ["placement"]:
        return placement.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="how often each is run; the median counts (5)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    met = [show(name, options.runs) for name in options.names or NAMES]
    return 0 if all(met) else 1


def show(name: str, runs: int) -> bool:
    """Run one benchmark so many times and print the medians of its figures."""
    module = importlib.import_module(f"benchmarks.{name}")
    run: Callable[[], Awaitable[list[Figure]]] = module.run
    runs = min(runs, getattr(module, "MOST_RUNS", runs))
    series: list[list[Figure]] = [asyncio.run(run()) for _ in range(runs)]  # type: ignore[arg-type]
    print(f"\n{name} (median of {runs})")
    if not all(series):
        print("  nothing of it can be measured on this machine")
        return True
    rows = []
    for figures in zip(*series, strict=True):
        first, value = figures[0], statistics.median(f.value for f in figures)
        rows.append((first.name, first.text(value), first.wanted(), first.met(value)))
    width = max(len(row[0]) for row in rows)
    for title, value_text, wanted, met in rows:
        verdict = "" if met is None else "met" if met else "MISSED"
        print(f"  {title:<{width}}  {value_text:>14}  {wanted:>18}  {verdict}", flush=True)
    return all(met is not False for *_, met in rows)


if __name__ == "__main__":
    sys.exit(main())
