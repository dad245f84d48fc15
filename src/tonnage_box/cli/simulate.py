"""`tonnage simulate`: effect of a workload on a cluster, under one scheduling policy or several."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.scheduler.core.cycle import Cycle
from tonnage.tools.cli import listing
from tonnage_box.simulate import plot, policy
from tonnage_box.simulate.full import FullSimulation
from tonnage_box.simulate.simulation import RunOptions, Simulation
from tonnage_box.simulate.tally import Result
from tonnage_box.simulate.workload import amounts, arrivals, workload

_FIRST_LINE, _NEXT_LINE = 2.0, 10.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("workload", type=Path, metavar="WORKLOAD.yaml", help="streams of pods: docs/tasks/simulate.md")
    parser.add_argument(
        "--nodes", required=True, metavar="N|FILE", help="number of the workload's nodes, or a file that lists nodes"
    )
    parser.add_argument(
        "--policy", action="append", default=[], metavar="NAME[,NAME]",
        help=f"{', '.join(policy.POLICIES)} (default: {policy.DEFAULT}); several are compared on the same trace",
    )  # fmt: skip
    parser.add_argument(
        "--pods",
        type=int,
        metavar="N",
        help="scale the rates so that N pods arrive; objects with several pods arrive whole",
    )
    parser.add_argument(
        "--score-nodes", type=float, default=Cycle.share * 100, metavar="PERCENT",
        help="percentage of the feasible nodes to score (default: %(default)g, as the scheduler)",
    )  # fmt: skip
    parser.add_argument(
        "--score-least", type=int, default=Cycle.least, metavar="N",
        help="minimum number of nodes to score (default: %(default)d, as the scheduler); fewer are faster",
    )  # fmt: skip
    parser.add_argument(
        "--full", action="store_true",
        help="run every controller, the agents and the API server too, in memory: slower by ten times and more",
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the runs into a .png or .svg file")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the trace (default: 0)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def run(options: argparse.Namespace) -> int:
    """Run the simulation and print results; 0 also when pods stay without node."""
    read = workload.load(options.workload)
    nodes = workload.load_nodes(options.nodes, read)
    chosen = policy.policies(options.policy)
    if options.pods is not None and options.pods < 1:
        raise InvalidError(f"--pods {options.pods}: at least 1")
    if not 0 <= options.score_nodes <= 100:
        raise InvalidError(f"--score-nodes {options.score_nodes:g}: from 0 to 100")
    if options.score_least < 1:
        raise InvalidError(f"--score-least {options.score_least}: at least 1")
    if options.plot is not None:
        plot.check(options.plot)
    scale, takes = arrivals.fitted(read, options.pods, seed=options.seed) if options.pods else (1.0, None)
    gc.set_threshold(100_000, 50, 1000)  # millions of objects live long: looking at all of them often is dear
    results, runs, total_bytes = [], {}, 0
    make, share = FullSimulation if options.full else Simulation, options.score_nodes / 100
    for each in chosen:
        with _progress(each.name) as progress:
            how = RunOptions(options.seed, scale, takes, share, options.score_least, progress=progress)
            simulation = make(read, nodes, each, how)
            total_bytes = simulation.total_bytes
            results.append(simulation.run())
            runs[each.name] = simulation.series
    count = sum(node.count for node in nodes)
    _show(options, read, count, total_bytes, results)
    if options.plot is not None:
        plot.draw(options.plot, f"{options.workload.name} on {count} nodes", runs)
    return 0


@contextmanager
def _progress(policy: str) -> Iterator[Callable[[float], None]]:
    """How far a run is, on standard error: a bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield ProgressLines(policy, time.monotonic)
        return
    from rich.console import Console  # only where it is looked at: it costs memory and time
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(policy, total=1.0)
        yield lambda share: bar.update(task, completed=share)


class ProgressLines:
    """Prints progress of a run: after two seconds, and then every ten. clock: seconds."""

    def __init__(self, policy: str, clock: Callable[[], float]) -> None:
        self._policy, self._clock = policy, clock
        self._next = clock() + _FIRST_LINE

    def __call__(self, share: float) -> None:
        """Note a share of the time."""
        if self._clock() >= self._next and share < 1:
            print(f"simulating {self._policy}: {share * 100:.0f} % of the time", file=sys.stderr, flush=True)
            self._next = self._clock() + _NEXT_LINE


def _show(
    options: argparse.Namespace, read: workload.Workload, nodes: int, total_bytes: int, results: Sequence[Result]
) -> None:
    if options.output == "table":
        hours = amounts.duration(read.duration) / 3600
        print(
            f"{options.workload.name}: {nodes} nodes with {from_bytes(total_bytes)}, {hours:g} h, seed {options.seed}"
        )
        kind = "counted" if options.full else "estimate"
        several = len(results) > 1
        rows = [
            [title.format(kind), *(form(result) for result in results), *([_winners(results, best)] if several else [])]
            for title, form, best in _ROWS
        ]
        listing.show("table", ["", *(result.policy for result in results), *(["best"] if several else [])], rows, None)
        if options.pods and results[0].pods != options.pods:
            print(
                f"    {options.pods} pods were requested, {results[0].pods} arrived: Jobs, Deployments, StatefulSets "
                "arrive whole, and restarts after the end do not count"
            )
        return
    document = {
        "workload": str(options.workload),
        "nodes": nodes,
        "bytes": total_bytes,
        "seed": options.seed,
        "results": [{field: getattr(result, field) for field in result.__dataclass_fields__} for result in results],
        "best": {title.partition(" (")[0].strip(): best_of(results, best) for title, _, best in _ROWS if best},
    }
    sys.stdout.write(listing.text("json", document))


def _share(part: float) -> str:
    return f"{part * 100:.2f} %"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"


def best_of(results: Sequence[Result], number: Callable[[Result], float]) -> list[str]:
    """The policies with the least number, as it is shown."""
    least = min(map(number, results))
    return [result.policy for result in results if number(result) == least]


def _winners(results: Sequence[Result], number: Callable[[Result], float] | None) -> str:
    if number is None:
        return "-"
    best = best_of(results, number)
    return "all alike" if len(best) == len(results) else ", ".join(best)


def _rounded(seconds: float) -> float:
    """Differences that are not shown decide nothing."""
    return round(seconds, 3) if seconds < 10 else round(seconds)


_ROWS: tuple[tuple[str, Callable[[Result], str], Callable[[Result], float] | None], ...] = (
    ("pods that arrived", lambda r: str(r.pods), None),
    ("placed", lambda r: f"{r.placed} ({_share(r.placement_rate)})", lambda r: -r.placed),
    ("without a node at the end", lambda r: str(r.waiting), lambda r: r.waiting),
    ("decisions", lambda r: str(r.decisions), None),
    ("  that found no node", lambda r: str(r.attempts_rejected), lambda r: r.attempts_rejected),
    ("rescheduled by a node", lambda r: str(r.rescheduled), lambda r: r.rescheduled),
    ("queueing p50", lambda r: _seconds(r.queue_p50), lambda r: _rounded(r.queue_p50)),
    ("queueing p99", lambda r: _seconds(r.queue_p99), lambda r: _rounded(r.queue_p99)),
    ("queueing, longest", lambda r: _seconds(r.queue_max), lambda r: _rounded(r.queue_max)),
    ("most pods waiting", lambda r: str(r.peak_waiting), lambda r: r.peak_waiting),
    ("stranded storage, mean", lambda r: _share(r.stranded_mean), lambda r: round(r.stranded_mean, 4)),
    ("stranded storage, peak", lambda r: _share(r.stranded_peak), lambda r: round(r.stranded_peak, 4)),
    ("peak allocation", lambda r: _share(r.peak_allocation), None),
    ("API writes a pod ({})", lambda r: f"{r.api_writes_per_pod:.1f}", lambda r: round(r.api_writes_per_pod, 1)),
    (
        "  of these capacity",
        lambda r: f"{r.capacity_writes_per_pod:.2f}",
        lambda r: round(r.capacity_writes_per_pod, 2),
    ),
    (
        "watch messages a pod ({})",
        lambda r: f"{r.watch_messages_per_pod:.1f}",
        lambda r: round(r.watch_messages_per_pod, 1),
    ),
)
"""Title, text, and a number of which less is better, or None."""
