"""`tonnage manifests`: prints the Kubernetes objects of an installation, for kubectl apply -f -."""

from __future__ import annotations

import argparse

from tonnage.api import names
from tonnage.capacity import tier
from tonnage.cli.controller import (
    CAPACITY_HELP,
    EVICT_HELP,
    add_template_arguments,
    drivers_of,
    group_label,
    templates_of,
)
from tonnage.errors import Invalid
from tonnage.node.config import driver
from tonnage.node.config.node import BINDINGS, KUBELET
from tonnage.node.provisioner.starvation import HELP as STARVATION_GUARD_HELP
from tonnage.node.provisioner.starvation import times
from tonnage.node.watch_scope import SCOPES
from tonnage.ops.install import options as install_options
from tonnage.ops.install.options import Installation
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--namespace", default=names.SYSTEM_NAMESPACE, metavar="NAME", help="default: %(default)s")
    parser.add_argument("--image", default=install_options.IMAGE, metavar="IMAGE", help="default: %(default)s")
    parser.add_argument(
        "--pool", action="append", default=[], metavar="KIND[:WHERE][,key=value...]",
        help="a pool of every node; repeatable, the first is the default one"
        " (default: image:/var/lib/tonnage,name=scratch,rootfs=yes)",
    )  # fmt: skip
    parser.add_argument(
        "--group", action="append", default=[], dest="groups", metavar="NAME:KIND[:WHERE][,key=value...]",
        help=f"a pool of the nodes with label {install_options.GROUP_LABEL}=NAME, instead of those of --pool;"
        " repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--class", action="append", default=[], dest="classes", metavar="NAME[,key=value...]",
        help="a StorageClass: default=yes, a field of it, or a parameter, as fast,pool=nvme,reclaimPolicy=Retain;"
        f" repeatable (default: {names.SCRATCH_CLASS})",
    )  # fmt: skip
    parser.add_argument("--bind", default=BINDINGS[0], choices=BINDINGS, help="who binds claims (default: %(default)s)")
    parser.add_argument(
        "--scope", default=SCOPES[0], choices=SCOPES, help="which claims agents watch (default: %(default)s)"
    )
    parser.add_argument("--capacity", default=tier.MODES[0], choices=tier.MODES, help=CAPACITY_HELP)
    parser.add_argument("--starvation-guard", type=int, default=0, metavar="N", help=STARVATION_GUARD_HELP)
    parser.add_argument("--kubelet", default=str(KUBELET), metavar="DIR", help="default: %(default)s")
    parser.add_argument(
        "--secret", action="append", default=[], metavar="NAMESPACE[/NAME]",
        help="a secret that classes may name, or all of a namespace; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--driver", action="append", default=[], metavar="NAME=TOPOLOGY_KEY",
        help="another CSI driver that the agents serve, its socket in the kubelet's plugins; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--kubernetes", default=".".join(map(str, install_options.KUBERNETES)), metavar="VERSION",
        help="the cluster's version: older ones have no policies (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--no-inline", action="store_true", help="no CSI inline volumes (volumes[].csi), which no quota counts"
    )
    parser.add_argument("--evict-unfit", action="store_true", help=EVICT_HELP)
    parser.add_argument(
        "--network-policy", action="store_true", help="agents and controllers may connect only to the API server"
    )
    parser.add_argument(
        "--scheduler", nargs="?", const=ScoringStrategy.LEAST_ALLOCATED.value,
        choices=[one.value for one in ScoringStrategy],
        help=f"with a second scheduler, for pods with schedulerName {names.SCHEDULER}; which of the nodes that fit it"
        " takes (default: %(const)s)",
    )  # fmt: skip
    add_template_arguments(parser)
    parser.add_argument("--monitoring", action="store_true", help="with PodMonitor, alert rules and a dashboard")


def run(options: argparse.Namespace) -> int:
    """Print them."""
    from tonnage.ops.install import manifests

    print(manifests.render(chosen(options)), end="")
    return 0


def chosen(options: argparse.Namespace) -> Installation:
    """The options of the command line. Raises Invalid."""
    if not names.is_dns_label(options.namespace):
        raise Invalid(f"namespace {options.namespace[:80]!r}: want a DNS label")
    if not options.image or any(letter.isspace() for letter in options.image):
        raise Invalid(f"image {options.image[:80]!r}: want a reference, as {install_options.IMAGE}")
    pools = [install_options.parse_pool(text) for text in options.pool] or [dict(install_options.DEFAULT_POOL)]
    groups = install_options.parse_groups(options.groups)
    for found in (pools, *groups.values()):
        if doubles := sorted({p["name"] for p in found if [q["name"] for q in found].count(p["name"]) > 1}):
            raise Invalid(f"two pools are named {doubles[0]!r}: give each a name=")
    templates_of(options.node_template)  # refused here rather than by the controller
    classes = [install_options.parse_class(text) for text in options.classes or [names.SCRATCH_CLASS]]
    if doubles := sorted({c.name for c in classes if [d.name for d in classes].count(c.name) > 1}):
        raise Invalid(f"two classes are named {doubles[0]!r}")
    return Installation(
        namespace=options.namespace,
        image=options.image,
        pools=pools,
        classes=classes,
        binding=options.bind,
        scope=options.scope,
        capacity=options.capacity,
        starvation_guard=times(options.starvation_guard),
        kubelet=str(driver.absolute("kubelet", options.kubelet)),
        secrets=install_options.parse_secrets(options.secret),
        drivers=drivers_of(options.driver),
        kubernetes=install_options.parse_version(options.kubernetes),
        monitoring=options.monitoring,
        inline=not options.no_inline,
        evict_unfit=options.evict_unfit,
        groups=groups,
        network_policy=options.network_policy,
        scheduler=ScoringStrategy(options.scheduler) if options.scheduler else None,
        group_labels=[group_label(text) for text in options.node_group_label],
        templates=options.node_template,
    )
