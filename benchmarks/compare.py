"""This commit beside another one: `python -m benchmarks compare FOLDER NAME[=MODULE]... [--runs N] [--save]`.

FOLDER is a checkout of the other commit with its own .venv. MODULE is the benchmark there, where its name differs. Both
take turns, each run in a process of its own. A figure may be 5 % worse in its median. It may be 10 % worse where the
runs of either side differ by more than 5 %: the distance of their quartiles, as a share of the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import results
from benchmarks.figure import Figure, render

HERE = Path(__file__).parents[1]
_RUN = """
import asyncio, importlib, json, sys
from dataclasses import asdict
figures = asyncio.run(importlib.import_module(sys.argv[1]).run())
print(json.dumps([{"name": f["name"], "value": f["value"], "unit": f["unit"]} for f in map(asdict, figures)]))
"""
SPREAD, LESS, MORE = 0.05, 1.05, 1.10


def main(arguments: Sequence[str], modules: Mapping[str, str]) -> int:
    """Compare the chosen benchmarks; 1 when a figure is worse. modules: name -> module of this commit."""
    parser = argparse.ArgumentParser(prog="benchmarks compare", description=__doc__)
    parser.add_argument("folder", type=Path, help="checkout of the other commit, with its .venv")
    parser.add_argument("names", nargs="+", metavar="NAME[=MODULE]", help=f"of {', '.join(modules)}")
    parser.add_argument("--runs", type=int, default=7, help="runs of each side (7)")
    parser.add_argument("--only", default="", help="names of figures that count, separated by ;")
    parser.add_argument("--save", action="store_true", help="write the result and the tables of the documentation")
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    for text in options.names:
        name, _, other = text.partition("=")
        if name not in modules:
            parser.error(f"unknown: {name}; there are {', '.join(modules)}")
        figures += _alternate(f"benchmarks.{modules[name]}", options.folder, other or name, options.runs)
    only = {name.strip() for name in options.only.split(";")} - {""}
    figures = [figure for figure in figures if not only or figure.name.partition(" (runs differ")[0] in only]
    print(render(f"beside {results.commit(options.folder)} (median of {options.runs})", figures), flush=True)
    if options.save:
        results.save("compare", figures, options.runs)
        results.write_tables()
    return 1 if any(figure.missed for figure in figures) else 0


def _alternate(module: str, folder: Path, other: str, runs: int) -> list[Figure]:
    """Figures that both have, the other side's median as the peer."""
    here: list[list[Figure]] = []
    there: list[list[Figure]] = []
    for number in range(runs):
        turns = [(here, HERE, module), (there, folder, f"benchmarks.{other}")]
        for found, place, name in turns if number % 2 else reversed(turns):  # neither side is always the first
            found.append(_run(place, name))
    return list(compare(here, there))


def compare(here: Sequence[Sequence[Figure]], there: Sequence[Sequence[Figure]]) -> Iterable[Figure]:
    """Yield one figure for each name that all runs have."""
    after, before = _values(here), _values(there)
    for figure in here[0]:
        mine, theirs = after.get(figure.name, []), before.get(figure.name, [])
        if len(mine) != len(here) or len(theirs) != len(there):
            continue
        spread = max(map(_spread, (mine, theirs)))
        limit = LESS if spread <= SPREAD else MORE
        name = figure.name if spread <= SPREAD else f"{figure.name} (runs differ by {spread:.0%})"
        more_is_better = figure.unit.endswith(("/s", "a second"))
        yield replace(
            figure,
            name=name,
            value=statistics.median(mine),
            other=statistics.median(theirs),
            other_name="before:",
            at_most=None if more_is_better else limit,
            at_least=1 / limit if more_is_better else None,
        )


def _values(runs: Sequence[Sequence[Figure]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for figure in (figure for run in runs for figure in run):
        found.setdefault(figure.name, []).append(figure.value)
    return found


def _spread(values: Sequence[float]) -> float:
    """Quartiles' distance as a share of the median: one slow run says nothing."""
    if len(values) < 2 or not statistics.median(values):
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def _run(folder: Path, module: str) -> list[Figure]:
    """Blocking. Raises CalledProcessError."""
    command = [str(folder.absolute() / ".venv" / "bin" / "python"), "-c", _RUN, module]
    ended = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=sys.stderr, check=True)
    return [Figure(**found) for found in json.loads(ended.stdout.splitlines()[-1])]
