"""Results of benchmarks as JSON, and the tables of the documentation that are made of them.

benchmarks/results.json holds the last saved run of each benchmark with its commit, day and machine. A line
`<!-- figures NAME -->` in a page, or `<!-- figures NAME: FIGURE; FIGURE | NAME -->`, is followed by the table of those
figures, up to `<!-- figures: end -->`; by how to get it where the benchmark was never saved.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.figure import HEADINGS, Figure
from benchmarks.modules import MODULES

FILE = Path(__file__).with_name("results.json")
PAGES = (Path("README.md"), Path("docs/benchmarks.md"))
_MARKED = re.compile(r"(<!-- figures (\w[^\n]*?) -->\n).*?(<!-- figures: end -->)", re.DOTALL)


class UnknownFigureError(Exception):
    """A page names a benchmark or a figure that was not saved."""


def save(name: str, figures: Sequence[Figure], runs: int, file: Path = FILE) -> None:
    """Replace the result of one benchmark. runs: how many the figures are medians of. Blocking."""
    found = _read(file)
    found[name] = {
        "commit": commit(FILE.parents[1]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _machine(),
        "runs": runs,
        "figures": [_given(figure) for figure in figures],
    }
    written = file.with_suffix(".new")
    written.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    written.replace(file)


def _given(figure: Figure) -> dict[str, object]:
    return {key: value for key, value in asdict(figure).items() if value not in (None, "")}


def write_tables(pages: Iterable[Path] = PAGES, file: Path = FILE) -> None:
    """Write the tables of these pages anew. Idempotent. Blocking. Raises UnknownFigureError."""
    for page in pages:
        page.write_text(tables(page.read_text(), file))


def tables(text: str, file: Path = FILE) -> str:
    """The page with its tables made of the saved results. Raises UnknownFigureError."""
    found = _read(file)

    def table(match: re.Match[str]) -> str:
        parts = [part.strip().partition(":") for part in match[2].split("|")]
        if unknown := " ".join(name for name, *_ in parts if name not in found and name not in MODULES):
            raise UnknownFigureError(f"no result of {unknown} is saved; run `python -m benchmarks {unknown} --save`")
        if missing := " ".join(name for name, *_ in parts if name not in found):
            return f"{match[1]}Not measured yet: `python -m benchmarks {missing} --save`.\n{match[3]}"
        chosen = [figure for name, _, wanted in parts for figure in _chosen(name, found[name], wanted)]
        return f"{match[1]}{_markdown({name: found[name] for name, *_ in parts}, chosen)}{match[3]}"

    return _MARKED.sub(table, text)


def _chosen(benchmark: str, result: Mapping[str, Any], wanted: str) -> Iterable[Figure]:
    """The figures with these names, separated by ;, or all."""
    figures = [Figure(**{"unit": "", **figure}) for figure in result["figures"]]
    names = [name.strip() for name in wanted.split(";") if name.strip()]
    if unknown := set(names) - {figure.name for figure in figures}:
        raise UnknownFigureError(f"{benchmark} has no figure {', '.join(sorted(unknown))}")
    return (figure for figure in figures if not names or figure.name in names)


def _markdown(found: Mapping[str, Mapping[str, Any]], figures: Sequence[Figure]) -> str:
    runs = "; ".join(
        f"`python -m benchmarks {name}`, commit {result['commit']}, {result['date']}, median of {result['runs']}"
        for name, result in found.items()
    )
    machines = {
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}"
        for machine in (result["machine"] for result in found.values())
    }
    lines = [
        f"{runs}: {'; '.join(sorted(machines))}.",
        "",
        f"| {' | '.join(HEADINGS[:-1])} | |",
        "| --- " * len(HEADINGS) + "|",
        *(f"| {' | '.join(figure.cells())} |" for figure in figures),
    ]
    return "\n".join(lines) + "\n"


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def commit(folder: Path) -> str:
    """The commit of a checkout, with a + where src differs from it. Blocking."""
    git = ["git", "-C", str(folder)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run([*git, "status", "--porcelain", "--", "src"], capture_output=True, text=True, check=True)
    return head.strip() + ("+" if changed.stdout else "")


def _machine() -> Mapping[str, object]:
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{pages / (1 << 30):.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
