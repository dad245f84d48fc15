"""`tonnage why POD`, `tonnage why pvc/NAME`: what a pod or a claim waits for, and what to do. Changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.scheduler.explain import NodeAnswer
from tonnage.scheduler.shortfalls import NodeShortfall
from tonnage.tools.cli import listing, node
from tonnage.tools.cli.output import Output
from tonnage.tools.ops.claim_errors import Said
from tonnage.tools.ops.why import WhyAnswer, why
from tonnage.tools.ops.why_claim import ClaimAnswer, why_claim

_PODS = ("", "pod", "pods", "po")
_CLAIMS = ("pvc", "persistentvolumeclaim", "persistentvolumeclaims")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb, named as kubectl names them."""
    parser.add_argument("pod", metavar="POD", help="its name, or pod/NAME, or pvc/NAME for a claim")
    parser.add_argument("-n", "--namespace", default="", metavar="NAME", help="the pod's (default: the kubeconfig's)")
    node.add_cluster_arguments(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")


def run(options: argparse.Namespace) -> int:
    """Print the explanation; 0 also when the pod fits on no node."""
    access, _ = node.cluster_of(options)
    kind, _, name = options.pod.rpartition("/")
    if kind not in (*_PODS, *_CLAIMS):
        raise InvalidError(f"{options.pod[:80]!r}: want a pod's name, or pvc/NAME, and the namespace with -n")
    namespace = options.namespace or access.namespace or "default"

    async def ask() -> WhyAnswer | ClaimAnswer:
        async with Client(HttpTransport(access, user_agent="tonnage-why")) as client:
            if kind in _CLAIMS:
                return await why_claim(client, name, namespace)
            return await why(client, name, namespace, clock=RealClock())

    found = asyncio.run(ask())
    if options.output != "table":
        sys.stdout.write(listing.text(options.output, found))
    elif isinstance(found, ClaimAnswer):
        show_claim(found)
    else:
        show(found)
    return 0


def show_claim(found: ClaimAnswer) -> None:
    """Print what a claim waits for."""
    out = Output()
    where = f" on node {found.node}" if found.node else ""
    volume = f", volume {found.volume}{where}" if found.volume else where
    out.line(f"claim {found.claim} is {found.phase}{volume}; {', '.join(found.pods) or 'no pod'} uses it")
    if found.said:
        out.title("Events")
        out.table(
            ("LAST", "TYPE", "REASON", "MESSAGE"), [(s.at or "-", s.type, s.reason, s.message) for s in found.said]
        )
    out.line(f"\n{found.message[0].upper()}{found.message[1:]}.")
    out.line(f"\nTo do: {found.todo}")


def show(found: WhyAnswer) -> None:
    """Print tables, and a last line with the next step."""
    out = Output()
    for reason in found.everywhere:
        out.line(f"on every node: {reason}")
    if found.said:
        out.title("Events" if found.node else "Events of its claims and their classes")
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
