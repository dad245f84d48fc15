"""`tonnage simulate`: what a workload would do to a cluster, under one scheduling policy or several."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tonnage.api.quantity import from_bytes
from tonnage.cli import listing
from tonnage.errors import Invalid
from tonnage.scheduler.cycle import Cycle
from tonnage.simulate import amounts, arrivals, plot, policy, workload
from tonnage.simulate.full import FullSimulation
from tonnage.simulate.simulation import Simulation
from tonnage.simulate.tally import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("workload", type=Path, metavar="WORKLOAD.yaml", help="streams of pods: docs/simulate.md")
    parser.add_argument(
        "--nodes", required=True, metavar="N|FILE", help="so many of the workload's nodes, or a file that lists nodes"
    )
    parser.add_argument(
        "--policy", action="append", default=[], metavar="NAME[,NAME]",
        help=f"{', '.join(policy.POLICIES)} (default: {policy.DEFAULT}); several are compared on the same trace",
    )  # fmt: skip
    parser.add_argument("--pods", type=int, metavar="N", help="scale the rates so that about N pods come")
    parser.add_argument(
        "--score-nodes", type=float, default=Cycle.share * 100, metavar="PERCENT",
        help="compare so many of the nodes that fit (default: %(default)g, as the scheduler)",
    )  # fmt: skip
    parser.add_argument(
        "--score-least", type=int, default=Cycle.least, metavar="N",
        help="but at least so many (default: %(default)d, as the scheduler); fewer are quicker",
    )  # fmt: skip
    parser.add_argument(
        "--full", action="store_true",
        help="run every controller, the agents and the API server too, in memory: slower by ten times and more",
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the runs into a .png or .svg file")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed is another trace (default: 0)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def run(options: argparse.Namespace) -> int:
    """Simulate and tell; 0 whatever became of the pods."""
    read = workload.load(options.workload)
    nodes = workload.load_nodes(options.nodes, read)
    chosen = policy.policies(options.policy)
    if options.pods is not None and options.pods < 1:
        raise Invalid(f"--pods {options.pods}: at least 1")
    if not 0 <= options.score_nodes <= 100:
        raise Invalid(f"--score-nodes {options.score_nodes:g}: from 0 to 100")
    if options.score_least < 1:
        raise Invalid(f"--score-least {options.score_least}: at least 1")
    if options.plot is not None:
        plot.check(options.plot)
    scale = options.pods / arrivals.expected(read) if options.pods else 1.0
    gc.set_threshold(100_000, 50, 1000)  # millions of objects live long: looking at all of them often is dear
    results, runs, room = [], {}, 0
    for each in chosen:
        with _progress(each.name) as progress:
            simulation = (FullSimulation if options.full else Simulation)(
                read, nodes, each,
                seed=options.seed, scale=scale, share=options.score_nodes / 100, least=options.score_least,
                progress=progress,
            )  # fmt: skip
            room = simulation.room
            results.append(simulation.run())
            runs[each.name] = simulation.series
    count = sum(node.count for node in nodes)
    _show(options, read, count, room, results)
    if options.plot is not None:
        plot.draw(options.plot, f"{options.workload.name} on {count} nodes", runs)
    return 0


@contextmanager
def _progress(policy: str) -> Iterator[Callable[[float], None]]:
    """A bar on standard error, where somebody looks at it."""
    if not sys.stderr.isatty():
        yield lambda share: None
        return
    from rich.console import Console  # only where it is looked at: it costs memory and time
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(policy, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _show(
    options: argparse.Namespace, read: workload.Workload, nodes: int, room: int, results: Sequence[Result]
) -> None:
    if options.output == "table":
        hours = amounts.duration(read.duration) / 3600
        print(f"{options.workload.name}: {nodes} nodes with {from_bytes(room)}, {hours:g} h, seed {options.seed}")
        told = "counted" if options.full else "estimate"
        rows = [[title.format(told), *(form(result) for result in results)] for title, form in _ROWS]
        listing.show("table", ["", *(result.policy for result in results)], rows, None)
        return
    document = {
        "workload": str(options.workload),
        "nodes": nodes,
        "bytes": room,
        "seed": options.seed,
        "results": [{field: getattr(result, field) for field in result.__dataclass_fields__} for result in results],
    }
    sys.stdout.write(listing.text("json", document))


def _share(part: float) -> str:
    return f"{part * 100:.2f} %"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"


_ROWS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("pods that came", lambda r: str(r.pods)),
    ("placed", lambda r: f"{r.placed} ({_share(r.placement_rate)})"),
    ("without a node at the end", lambda r: str(r.waiting)),
    ("decisions", lambda r: str(r.decisions)),
    ("  that found no node", lambda r: str(r.attempts_refused)),
    ("sent back by a node", lambda r: str(r.withdrawn)),
    ("queueing p50, p99", lambda r: f"{_seconds(r.queue_p50)}, {_seconds(r.queue_p99)}"),
    ("queueing, longest", lambda r: _seconds(r.queue_max)),
    ("most pods waiting", lambda r: str(r.peak_waiting)),
    ("stranded storage: mean, peak", lambda r: f"{_share(r.stranded_mean)}, {_share(r.stranded_peak)}"),
    ("peak room", lambda r: _share(r.peak_room)),
    ("API writes a pod ({})", lambda r: f"{r.api_writes_per_pod:.1f}"),
    ("  of these capacity", lambda r: f"{r.capacity_writes_per_pod:.2f}"),
    ("watch messages a pod ({})", lambda r: f"{r.watch_messages_per_pod:.1f}"),
)
