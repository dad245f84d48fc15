"""`tonnage why POD`: why a pod has no node: each node's shortfalls, and what to do. Changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tonnage.aio.clock import RealClock
from tonnage.cli import listing, node
from tonnage.cli.output import Output
from tonnage.errors import InvalidError
from tonnage.kube.client import Client
from tonnage.kube.http import HttpTransport
from tonnage.ops.claim_errors import Said
from tonnage.ops.why import WhyAnswer, why
from tonnage.scheduler.explain import NodeAnswer
from tonnage.scheduler.shortfalls import NodeShortfall

_KINDS = ("pod", "pods", "po")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb, named as kubectl names them."""
    parser.add_argument("pod", metavar="POD", help="its name, or pod/NAME")
    parser.add_argument("-n", "--namespace", default="", metavar="NAME", help="the pod's (default: the kubeconfig's)")
    node.add_cluster_arguments(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")


def run(options: argparse.Namespace) -> int:
    """Print the explanation; 0 also when the pod fits on no node."""
    access, _ = node.cluster_of(options)
    name, namespace = _name(options.pod), options.namespace or access.namespace or "default"

    async def ask() -> WhyAnswer:
        async with Client(HttpTransport(access, user_agent="tonnage-why")) as client:
            return await why(client, name, namespace, clock=RealClock())

    show(options.output, asyncio.run(ask()))
    return 0


def _name(text: str) -> str:
    kind, slash, name = text.rpartition("/")
    if slash and kind not in _KINDS:
        raise InvalidError(f"{text[:80]!r} is not a pod: want its name, and its namespace with -n")
    return name


def show(form: str, found: WhyAnswer) -> None:
    """Print tables and a last line with the next step, or a document."""
    if form != "table":
        sys.stdout.write(listing.text(form, found))
        return
    out = Output()
    for reason in found.everywhere:
        out.line(f"on every node: {reason}")
    if found.said:
        out.title("Events of its claims and their classes")
        out.table(("LAST", "TYPE", "REASON", "ABOUT", "MESSAGE"), [_event(said) for said in found.said])
    for thing in found.unchecked:
        out.line(f"not checked: {thing}")
    if found.nodes:
        out.title("Nodes")
        out.table(("NODE", "FITS", "LACKS"), [row for answer in found.nodes for row in _rows(answer)])
    rows = [_row(answer, shortfall) for answer in found.nodes for shortfall in answer.claims]
    if rows:
        out.title("Storage")
        out.table(("NODE", "CLAIM", "CLASS", "ASKED", "FREE", "LARGEST", "PUBLISHED", "PROBLEM"), rows)
        unknown = "" if all(row[6] != "-" for row in rows) else "; -: none, or the API server does not record when"
        out.line(f"    read at {found.read}{unknown}")
    if found.message:
        out.line(f"\n{found.message}")
    if found.condition and found.condition != found.message:
        out.line(f"\nThe pod's condition: {found.condition}")
    for said in found.priorities:
        out.line(f"\n{said[0].upper()}{said[1:]}.")
    out.line(f"\nTo do: {found.todo}")


def _event(said: Said) -> tuple[str, ...]:
    return (said.at or "-", said.type, said.reason, said.about, said.message)


def _rows(answer: NodeAnswer) -> list[tuple[str, str, str]]:
    """One line for each thing that is lacking."""
    first, *others = answer.lacks or ["-" if answer.fits else "nothing: its claims are invalid, see above"]
    return [(answer.node, "yes" if answer.fits else "no", first), *(("", "", lack) for lack in others)]


def _row(answer: NodeAnswer, shortfall: NodeShortfall) -> tuple[str, ...]:
    sizes = map(listing.size, (shortfall.asked, shortfall.free, shortfall.largest))
    return (
        answer.node,
        shortfall.claim,
        shortfall.storage_class,
        *sizes,
        shortfall.published or "-",
        shortfall.problem or "-",
    )
