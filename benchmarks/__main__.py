"""`make bench`, or `python -m benchmarks [NAME...] [--runs N] [--save]`: the figures of the documentation, as tables.

Each line: what was measured, the median of the runs, a peer's value in the same runs, their ratio, the goal, and
whether it was met. Times on a shared machine are noisy: run it on a quiet one. --save writes the results as JSON and
the tables of the documentation. `python -m benchmarks placement` and `compare`
have options of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable

from benchmarks import compare, results
from benchmarks.figure import Figure, medians, render
from benchmarks.modules import MODULES
from benchmarks.placement import placement


def main() -> int:
    """Run the chosen benchmarks and print their figures; 1 when a goal was missed."""
    if sys.argv[1:2] == ["placement"]:
        return placement.main(sys.argv[2:])
    if sys.argv[1:2] == ["compare"]:
        return compare.main(sys.argv[2:], MODULES)
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)} (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each; medians are shown (5)")
    parser.add_argument("--save", action="store_true", help="write the results and the tables of the documentation")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MODULES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    met = [show(name, options.runs, save=options.save) for name in options.names or MODULES]
    if options.save:
        results.write_tables()
    return 0 if all(met) else 1


def show(name: str, runs: int, *, save: bool) -> bool:
    """Run one benchmark so many times and print the medians of its figures; whether all goals were met."""
    module = importlib.import_module(f"benchmarks.{MODULES[name]}")
    run: Callable[[], Awaitable[list[Figure]]] = module.run
    runs = min(runs, getattr(module, "MOST_RUNS", runs))
    series: list[list[Figure]] = [asyncio.run(run()) for _ in range(runs)]  # type: ignore[arg-type]
    if not all(series):
        print(f"\n{name}: nothing of it can be measured on this machine")
        return True
    figures = medians(series)
    print(render(f"{name} (median of {runs})", figures), flush=True)
    if save:
        results.save(name, figures, runs)
    return not any(figure.missed for figure in figures)


if __name__ == "__main__":
    sys.exit(main())
