"""`tonnage controller`: cluster-wide control loops of an installation on Kubernetes, in the foreground."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tonnage.api import names
from tonnage.api.quantity import to_bytes
from tonnage.capacity import tier
from tonnage.capacity.node_template import NodeTemplate, TemplateCapacity
from tonnage.cli import replica
from tonnage.controller.app import ControllerConfig, ControllerProcess
from tonnage.errors import Invalid

CAPACITY_HELP = (
    "how capacity is published: exact, one object for each node and class; tiers, by node labels;"
    f" auto (default): tiers on more than {tier.AUTO_ABOVE} nodes"
)

EVICT_HELP = (
    f"evict pods whose inline volume does not fit on their node, if pod or namespace has {names.EVICT_UNFIT}=true"
    " and a controller replaces the pod"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    replica.add_arguments(parser)
    parser.add_argument(
        "--driver", action="append", default=[], metavar="NAME=TOPOLOGY_KEY",
        help=f"another CSI driver that the agents serve, in addition to {names.DRIVER}; repeatable",
    )  # fmt: skip
    parser.add_argument("--capacity", default=tier.MODES[0], choices=tier.MODES, help=CAPACITY_HELP)
    parser.add_argument("--evict-unfit", action="store_true", help=EVICT_HELP)
    add_template_arguments(parser)


def add_template_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for template nodes of an autoscaler."""
    parser.add_argument(
        "--node-group-label", action="append", default=[], metavar="LABEL",
        help="a label whose value is a node's group: the capacity of its new nodes is learned and published for the"
        " cluster autoscaler; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--node-template", action="append", default=[], metavar="LABEL=VALUE:CLASS=SIZE[/LARGEST],...",
        help="capacity of a new node of such a group for each class, and its maximum volume size; repeatable",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Stand for election and work, until a signal."""
    config = configured(options)
    return replica.serve(options, "controller", config.identity, lambda client: ControllerProcess(config, client))


def configured(options: argparse.Namespace) -> ControllerConfig:
    """Configuration from the command line and the environment. Raises Invalid."""
    return ControllerConfig(
        identity=replica.identity_of(options),
        namespace=replica.namespace_of(options),
        drivers={names.DRIVER: names.TOPOLOGY_NODE, **drivers_of(options.driver)},
        capacity=options.capacity,
        metrics=replica.metrics_of(options),
        evict_unfit=options.evict_unfit,
        templates=templates_of(options.node_template),
        group_labels=[group_label(text) for text in options.node_group_label],
    )


def group_label(text: str) -> str:
    """--node-group-label. Raises Invalid."""
    if not _is_group_label(text):
        raise Invalid(f"--node-group-label {text[:80]!r}: want a label's key, as eks.amazonaws.com/nodegroup")
    return text


def templates_of(texts: Sequence[str]) -> list[NodeTemplate]:
    """All --node-template, one for each group. Raises Invalid."""
    found = [template_of(text) for text in texts]
    groups = [template.group for template in found]
    if doubles := [group for number, group in enumerate(groups) if group in groups[:number]]:
        raise Invalid(f"--node-template: {doubles[0]} is given twice: name all its classes in one, parted by commas")
    return found


def _is_group_label(key: str) -> bool:
    """Whether a label can identify groups: the label of template nodes is the same for all of them."""
    return names.is_label_key(key) and key != names.TEMPLATE_NODE


def template_of(text: str) -> NodeTemplate:
    """A --node-template. Raises Invalid."""
    group, colon, rooms = text.partition(":")
    label, equals, value = group.partition("=")
    if not colon or not equals or not _is_group_label(label) or not names.is_label_value(value):
        raise Invalid(f"--node-template {text[:80]!r}: want LABEL=VALUE:CLASS=SIZE, as pool=big:tonnage-scratch=100Gi")
    return NodeTemplate(group, dict(_class_room(part, text) for part in rooms.split(",")))


def _class_room(text: str, whole: str) -> tuple[str, TemplateCapacity]:
    name, equals, sizes = text.partition("=")
    size, slash, largest = sizes.partition("/")
    if not equals or not names.is_dns_subdomain(name):
        raise Invalid(f"--node-template {whole[:80]!r}: {text[:60]!r} is not CLASS=SIZE or CLASS=SIZE/LARGEST")
    free = to_bytes(size)
    most = min(free, to_bytes(largest)) if slash else free
    if most < 0:
        raise Invalid(f"--node-template {whole[:80]!r}: {text[:60]!r}: a size is at least 0")
    return name, TemplateCapacity(free, most)


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
