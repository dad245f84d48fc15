"""`tonnage VERB`: the table of verbs, and the exit codes.

0  success       1  failure: the reason is on standard error
2  the command line or a setting is wrong          3  in use, or not possible in the present state
4  the machine lacks something (root, a program, free space)
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from tonnage import __version__
from tonnage.base import collector, errors

# Verb -> one line of help. A verb's module is imported only when it is used: starting stays quick.
VERBS = {
    "up": "run a cluster on this machine",
    "down": "stop the cluster of a data folder; --purge removes it",
    "node": "run a node of a Kubernetes cluster: its CSI driver and its agent",
    "controller": "run the cluster-wide control loops of an installation on Kubernetes",
    "scheduler": "run a second scheduler on a Kubernetes cluster, which counts assumed claims",
    "manifests": "print the Kubernetes objects of an installation",
    "doctor": "check an installation on Kubernetes or a box: faults, and what to do",
    "why": "explain node by node why a pod is not scheduled, and what to do",
    "driver": "run a CSI driver for any orchestrator",
    "cinder": "run a CSI driver over the drivers of OpenStack Cinder (experimental)",
    "flexvolume": "install the FlexVolume driver on a node whose cluster still has such manifests, or remove it",
    "pools": "show size, allocation and faults of pools; create pools on devices",
    "images": "load, list and remove the images of a box",
    "volumes": "list, show, purge and adopt volumes",
    "simulate": "simulate a workload on virtual nodes, and compare scheduling policies",
    "demo": "show the main features on real volumes, with a check of every line",
}

_OF_BOX = ("up", "down", "images", "simulate", "demo")
"""Verbs of the distribution tonnage-box, which are its entry points in the group `tonnage.verbs`."""

_CODES: tuple[tuple[int, tuple[type[errors.TonnageError], ...]], ...] = (
    (2, (errors.InvalidError, errors.OutOfRangeError)),
    (4, (errors.UnsupportedError, errors.HostError, errors.ExhaustedError)),
    (3, (errors.BusyError, errors.PreconditionError)),
)


_WHO = "run it as root (sudo), or name files that are yours"


def exit_code(failure: errors.TonnageError) -> int:
    """The exit code for an error of ours."""
    return next((code for code, kinds in _CODES if isinstance(failure, kinds)), 1)


def _module(verb: str) -> Any:
    """Import the module of a verb. Raises: UnsupportedError for one of a distribution that is not installed."""
    with collector.paused():  # what is imported stays: looking at it takes a twelfth of the import
        if verb not in _OF_BOX:
            return importlib.import_module(f"tonnage.tools.cli.{verb}")
        from importlib.metadata import entry_points  # a tenth of the start of a verb that needs none

        for found in entry_points(group="tonnage.verbs", name=verb):
            return found.load()
    raise errors.UnsupportedError("it is in tonnage-box, which is not installed: pip install 'tonnage[box]'")


def build_parser(chosen: str = "") -> argparse.ArgumentParser:
    """The parser of the whole command line; only the chosen verb's own options are filled in."""
    parser = argparse.ArgumentParser(
        prog="tonnage",
        description="Node-local storage for Kubernetes: a pod gets volumes of the requested size, or does not start.",
    )
    parser.add_argument("--version", action="version", version=f"tonnage {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, summary in VERBS.items():
        sub = verbs.add_parser(verb, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if verb == chosen:
            _module(verb).add_arguments(sub)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((a for a in given if a in VERBS), "")
    try:
        parser = build_parser(verb)
    except errors.UnsupportedError as failure:
        print(f"tonnage {verb}: {failure}", file=sys.stderr)
        return exit_code(failure)
    options = parser.parse_args(given)
    try:
        return int(_module(options.verb).run(options))
    except errors.TonnageError as failure:
        print(f"tonnage {options.verb}: {failure}", file=sys.stderr)
        return exit_code(failure)
    except PermissionError as failure:
        at = f"{failure.filename}: " if failure.filename else ""
        print(f"tonnage {options.verb}: {at}{failure.strerror}; {_WHO}", file=sys.stderr)
        return exit_code(errors.HostError())
    except KeyboardInterrupt:
        print(f"tonnage {options.verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
