"""Plot of the runs of a simulation, one column for each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tonnage.base.errors import HostError, InvalidError, UnsupportedError
from tonnage_box.simulate.tally import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMS = (".png", ".svg")
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v")
_SHORTEST = 1e-3  # seconds: a logarithmic axis has no 0
_MARKS = 14  # on each line


def check(file: Path) -> None:
    """Check the file before anything is simulated.

    Raises: InvalidError for a form that is not drawn or a folder that is not there, UnsupportedError without
    matplotlib.
    """
    if file.suffix.lower() not in FORMS:
        raise InvalidError(f"--plot {file}: the name must end in {' or '.join(FORMS)}")
    if not file.absolute().parent.is_dir():
        raise InvalidError(f"--plot {file}: there is no folder {file.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedError("--plot needs matplotlib: pip install 'tonnage[plots]'") from None


def draw(file: Path, title: str, runs: Mapping[str, Series]) -> None:
    """Draw the runs (policy -> series) into a PNG or SVG. Raises: as check(), HostError when it cannot be written."""
    check(file)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    waiting, held, stranded, queueing = figure.subplots(2, 2).flat
    for number, (policy, run) in enumerate(runs.items()):
        _line(waiting, number, len(runs), policy, run.hours, run.waiting)
        _line(held, number, len(runs), policy, run.hours, [100 * share for share in run.held])
        _line(stranded, number, len(runs), policy, run.stranded_hours, [100 * share for share in run.stranded])
        longer = {max(_SHORTEST, seconds): 100 * share for seconds, share in run.queueing.items() if share}
        _line(queueing, number, len(runs), policy, list(longer), list(longer.values()))
    _name(waiting, "pods without a node", "hour", "pods")
    _name(held, "storage that volumes hold", "hour", "% of all")
    _name(stranded, "stranded storage", "hour", "% of all")
    _name(queueing, "queueing time", "seconds", "% of pods that waited longer")
    if any(line.get_xdata().size for line in queueing.lines):  # there is no logarithm of nothing
        queueing.set_xscale("log")
        queueing.set_yscale("log")
    waiting.legend()
    try:
        with rc_context({"svg.hashsalt": "tonnage"}):  # the same runs, the same file
            figure.savefig(file, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)
    except OSError as failure:
        raise HostError(f"cannot write {file}: {failure.strerror}") from failure


def _line(axes: Axes, number: int, of: int, policy: str, across: Sequence[float], up: Sequence[float]) -> None:
    """Draw one policy, visible also where others have the same values.

    The first is the widest, and each has marks of its own between those of the others.
    """
    every = max(1, len(across) // _MARKS)
    axes.plot(
        across, up, label=policy, linestyle=_LINES[number % len(_LINES)], linewidth=1.2 + 1.3 * (of - 1 - number),
        marker=_MARKERS[number % len(_MARKERS)], markersize=5, markerfacecolor="none", alpha=0.8,
        markevery=(number * every // of, every),
    )  # fmt: skip


def _name(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(visible=True, alpha=0.3)
    if title != "queueing time":
        axes.set_ylim(bottom=0)
