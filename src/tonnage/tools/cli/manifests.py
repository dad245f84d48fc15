"""`tonnage manifests`: prints the Kubernetes objects of an installation, for kubectl apply -f -."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tonnage.base import option
from tonnage.base.errors import InvalidError
from tonnage.base.option import option_of
from tonnage.controller.config import ControllerConfig, parse_drivers
from tonnage.kubernetes.api import names
from tonnage.node.config.agent import AgentConfig
from tonnage.node.config.driver import DriverConfig
from tonnage.node.config.node import NodeConfig
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.tools.ops.install import options as install_options
from tonnage.tools.ops.install.options import Class, Installation

_OF_NODE: dict[str, type] = {
    "bind": AgentConfig,
    "scope": AgentConfig,
    "capacity": ControllerConfig,
    "starvation_guard": AgentConfig,
    "kubelet": NodeConfig,
    "inline": NodeConfig,
    "flexvolume": NodeConfig,
    "fetch": DriverConfig,
    "image_stores": DriverConfig,
    "sources": DriverConfig,
}
"""Options that are written into the nodes' file, with the configuration that declares them."""
_OF_CONTROLLER = (
    "evict_unfit",
    "free_populators",
    "node_group_labels",
    "node_templates",
    "snapshot_controller",
    "attach_endpoints",
)


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
    for name, config in _OF_NODE.items():
        option.add_arguments(parser, config, [name])
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
    parser.add_argument(
        "--network-policy", action="store_true", help="agents and controllers may connect only to the API server"
    )
    parser.add_argument(
        "--scheduler", nargs="?", const=ScoringStrategy.LEAST_ALLOCATED.value,
        choices=[one.value for one in ScoringStrategy],
        help=f"with a second scheduler, for pods with schedulerName {names.SCHEDULER}; which of the nodes that fit it"
        " takes (default: %(const)s)",
    )  # fmt: skip
    option.add_arguments(parser, ControllerConfig, _OF_CONTROLLER)
    parser.add_argument(
        "--certificate-issuer", action="append", default=[], dest="issuers",
        metavar="NAME=SECRET[,allow=KIND:PATTERN][,days=N][,domain=DOMAIN][,is-ca=true]",
        help="sign certificates of inline volumes for signer tonnage.dev/NAME with a Secret of type kubernetes.io/tls,"
        " as `tonnage controller` does; repeatable",
    )  # fmt: skip
    _add_snapshot_arguments(parser)
    parser.add_argument("--monitoring", action="store_true", help="with PodMonitor, alert rules and a dashboard")


def _add_snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--snapshot-class", action="store_true",
        help="with a default VolumeSnapshotClass and VolumeGroupSnapshotClass, tonnage; the cluster must have the"
        " kinds",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot-crds", action="store_true",
        help="print only the definitions of VolumeSnapshots and of their groups, for a cluster that has none (kubectl"
        " create -f -: existing ones stay)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Print them."""
    from tonnage.tools.ops.install import manifests

    text = manifests.template("snapshot-crds.yaml") if options.snapshot_crds else manifests.render(chosen(options))
    print(text, end="")
    return 0


def chosen(options: argparse.Namespace) -> Installation:
    """Return the options of the command line. Raises: InvalidError."""
    if not names.is_dns_label(options.namespace):
        raise InvalidError(f"namespace {options.namespace[:80]!r}: want a DNS label")
    if not options.image or any(letter.isspace() for letter in options.image):
        raise InvalidError(f"image {options.image[:80]!r}: want a reference, as {install_options.IMAGE}")
    controller = option.read(ControllerConfig, option.given_by(options))  # rejected here, not by the controller
    return Installation(
        namespace=options.namespace,
        image=options.image,
        classes=_classes(options.classes or [names.SCRATCH_CLASS]),
        node=_of_node(options),
        secrets=install_options.parse_secrets(options.secret),
        drivers=parse_drivers(options.driver),
        kubernetes=install_options.parse_version(options.kubernetes),
        monitoring=options.monitoring,
        inline=not options.no_inline,
        evict_unfit=options.evict_unfit,
        free_populators=options.free_populators,
        issuers=[install_options.parse_installed_issuer(text) for text in options.issuers],
        snapshot_controller=options.snapshot_controller,
        attach_endpoints=options.attach_endpoints or (),
        snapshot_class=options.snapshot_class,
        network_policy=options.network_policy,
        scheduler=ScoringStrategy(options.scheduler) if options.scheduler else None,
        group_labels=controller.get("group_labels", ()),
        templates=options.node_templates or (),
        **_pools(options),
    )


def _of_node(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given options of the nodes' file, checked. Raises: InvalidError."""
    found: dict[str, Any] = {}
    for name, config in _OF_NODE.items():
        if value := getattr(options, name):
            declared = option_of(config, name)
            checked = declared.value_of(value, declared.flag)
            found[name] = value if isinstance(value, int | list) else str(checked)
    return found


def _classes(texts: Sequence[str]) -> list[Class]:
    classes = [install_options.parse_class(text) for text in texts]
    if doubles := sorted({c.name for c in classes if [d.name for d in classes].count(c.name) > 1}):
        raise InvalidError(f"two classes are named {doubles[0]!r}")
    return classes


def _pools(options: argparse.Namespace) -> dict[str, Any]:
    """Return pools and groups. Raises: InvalidError."""
    pools = [install_options.parse_pool(text) for text in options.pool] or [dict(install_options.DEFAULT_POOL)]
    groups = install_options.parse_groups(options.groups)
    for found in (pools, *groups.values()):
        if doubles := sorted({p["name"] for p in found if [q["name"] for q in found].count(p["name"]) > 1}):
            raise InvalidError(f"two pools are named {doubles[0]!r}: give each a name=")
    return {"pools": pools, "groups": groups}
