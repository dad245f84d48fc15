"""`tonnage controller`: the duties of a Kubernetes cluster that no node can have, in the foreground."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tonnage.api import names
from tonnage.apps.controller import ControllerConfig, ControllerProcess
from tonnage.cli import replica
from tonnage.controllers import tier
from tonnage.errors import Invalid

CAPACITY_HELP = (
    "how room is published: exact, one object for each node and class; tiers, by labels of the nodes that have plenty;"
    f" auto (default): tiers on more than {tier.AUTO_ABOVE} nodes"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    replica.add_arguments(parser)
    parser.add_argument(
        "--driver", action="append", default=[], metavar="NAME=TOPOLOGY_KEY",
        help=f"another CSI driver that the agents serve, beside {names.DRIVER}; repeatable",
    )  # fmt: skip
    parser.add_argument("--capacity", default=tier.MODES[0], choices=tier.MODES, help=CAPACITY_HELP)


def run(options: argparse.Namespace) -> int:
    """Stand for election and work, until a signal."""
    config = configured(options)
    return replica.serve(options, "controller", config.identity, lambda client: ControllerProcess(config, client))


def configured(options: argparse.Namespace) -> ControllerConfig:
    """What the command line and the environment say. Raises Invalid."""
    return ControllerConfig(
        identity=replica.identity_of(options),
        namespace=replica.namespace_of(options),
        drivers={names.DRIVER: names.TOPOLOGY_NODE, **drivers_of(options.driver)},
        capacity=options.capacity,
        metrics=replica.metrics_of(options),
    )


def drivers_of(texts: Sequence[str]) -> dict[str, str]:
    """Driver -> topology key, out of NAME=TOPOLOGY_KEY. Raises Invalid."""
    found = {}
    for text in texts:
        name, equals, key = text.partition("=")
        if not equals or not names.is_dns_subdomain(name.lower()) or not key:
            raise Invalid(
                f"--driver {text[:80]!r}: want NAME=TOPOLOGY_KEY, as csi.example.com=topology.example.com/node"
            )
        found[name] = key
    return found
