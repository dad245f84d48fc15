"""`tonnage node`: CSI driver and agent of one node of a Kubernetes cluster, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from tonnage.api import names
from tonnage.capacity import tier
from tonnage.cli import driver
from tonnage.errors import NotFound
from tonnage.kube import kubeconfig
from tonnage.kube.client import Client
from tonnage.kube.http import HttpTransport
from tonnage.kube.kubeconfig import Access
from tonnage.node.config import driver as config_driver
from tonnage.node.config import node as config_node
from tonnage.node.config import preflight
from tonnage.node.config.node import BINDINGS, KUBELET, LEVELS, NodeConfig, NodeFile
from tonnage.node.provisioner.starvation import HELP as STARVATION_GUARD_HELP
from tonnage.node.watch_scope import SCOPES
from tonnage.observe import log as logs
from tonnage.observe import trace
from tonnage.observe.process import raise_file_limit, tune_allocator
from tonnage.pools import config as pool_config

if TYPE_CHECKING:
    from tonnage.box.data_dir import DataFolder

REQUESTS_AT_ONCE = 8
"""Of an agent: enough for a hundred pods that come at once, few enough for a thousand agents that an API server has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb. Each is also a field of --config, which they override; pools add up."""
    driver.add_pools(parser)
    parser.add_argument("--node-name", default="", metavar="NAME", help="default: $NODE_NAME, else the host's name")
    parser.add_argument("--driver-name", default="", metavar="NAME", help=f"default: {names.DRIVER}")
    parser.add_argument("--topology-key", default="", metavar="KEY", help=f"default: {names.TOPOLOGY_NODE}")
    parser.add_argument(
        "--max-volumes", type=int, default=0, metavar="N", help="maximum number of volumes of the node, 0: no limit"
    )
    parser.add_argument("--kubelet", default="", metavar="DIR", help=f"the kubelet's folder (default: {KUBELET})")
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the pod's service account)"
    )
    parser.add_argument(
        "--namespace", default="", metavar="NAME",
        help=f"namespace of capacity objects (default: $POD_NAMESPACE, else {names.SYSTEM_NAMESPACE})",
    )  # fmt: skip
    parser.add_argument(
        "--bind", default="", choices=("", *BINDINGS), metavar="WHO",
        help="who binds claims to this node's volumes: agent (default) or controller, the cluster's PV controller",
    )  # fmt: skip
    parser.add_argument(
        "--scope", default="", choices=("", *SCOPES),
        help="which claims are watched: those labeled with this node, all, or as the cluster allows (auto, default)",
    )  # fmt: skip
    parser.add_argument(
        "--capacity", default="", choices=("", *tier.MODES),
        help="how capacity is published: exact, an object for each class; tiers, by node labels; auto"
        " (default): as the cluster's controller",
    )  # fmt: skip
    parser.add_argument("--starvation-guard", type=int, default=0, metavar="N", help=STARVATION_GUARD_HELP)
    parser.add_argument(
        "--csi-endpoint", action="append", default=[], metavar="unix:///DIR/csi.sock",
        help="another CSI driver of this node that the agent serves as well; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", default="", metavar="[ADDRESS:]PORT", help="serve Prometheus metrics (default address: loopback)"
    )
    driver.add_sources(parser)
    parser.add_argument(
        "--check", action="store_true", help="check the configuration against the machine, change nothing, and exit"
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--log-level", default="", choices=("", *LEVELS), help="default: info")


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; with --check only check."""
    from tonnage.node.process import NodeProcess

    config = configured(options)
    findings = preflight.check(config.driver)
    if options.check:
        return driver.show(findings)
    preflight.require(findings)
    access = access_of(options.kubeconfig)
    tune_allocator()
    raise_file_limit()
    logs.setup(config.log_level, as_json=options.log_format == "json")
    trace.setup("tonnage-node", {"k8s.node.name": config.driver.node_name})
    preflight.warn(findings)

    async def serve() -> None:
        agent = f"tonnage-node/{config.driver.node_name}"
        client = Client(HttpTransport(access, user_agent=agent, at_once=REQUESTS_AT_ONCE))
        live = (options.config, lambda: configured(options)) if options.config else None
        await driver.serve_until_signal(NodeProcess(config, client, live=live), f"node={config.driver.node_name}")

    asyncio.run(serve())
    driver.leave_stuck()
    return 0


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name a cluster or a box, for cluster_of()."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--kubeconfig", type=Path, metavar="FILE",
        help="the cluster (default: $KUBECONFIG, else the box that runs here, else as kubectl finds it)",
    )  # fmt: skip
    where.add_argument("--data", type=Path, metavar="DIR", help="a box's data folder: that cluster")


def cluster_of(options: argparse.Namespace) -> tuple[Access, DataFolder | None]:
    """The cluster that is meant, and its data folder where it is a box of this machine. Raises Invalid, NotFound."""
    try:
        from tonnage.box.data_dir import DataFolder, default_folder
    except ModuleNotFoundError:  # in the container image
        if options.data is not None:
            raise NotFound(f"no box is installed here: {options.data}; name a cluster with --kubeconfig") from None
        return access_of(options.kubeconfig), None
    if options.data is None and (options.kubeconfig is not None or os.environ.get("KUBECONFIG")):
        file = options.kubeconfig or Path(os.environ["KUBECONFIG"])
        box = DataFolder(file.parent)
        mine = box.exists() and os.path.realpath(file) == os.path.realpath(box.kubeconfig)
        return kubeconfig.load(options.kubeconfig), box if mine else None
    box = DataFolder(options.data or default_folder())
    if (box.running() or 0) <= 0:
        if options.data is None:
            return access_of(None), None
        todo = f"`tonnage up --data {box.path}`" if box.exists() else "name another with --data or --kubeconfig"
        raise NotFound(f"no cluster runs in {box.path}: {todo}")
    return kubeconfig.load(box.kubeconfig), box


def access_of(file: Path | None) -> Access:
    """The cluster of a kubeconfig, else that of the pod we run in, else as kubectl finds it. Raises Invalid."""
    if file is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return kubeconfig.in_cluster()
    return kubeconfig.load(file)


def configured(options: argparse.Namespace) -> NodeConfig:
    """The command line over the file that it names. Raises Invalid."""
    file = config_driver.load(options.config, NodeFile) if options.config else NodeFile()
    given = NodeFile(
        node_name=options.node_name,
        driver_name=options.driver_name,
        topology_key=options.topology_key,
        max_volumes=options.max_volumes,
        metrics=options.metrics,
        sources=options.source,
        kubelet=options.kubelet,
        namespace=options.namespace or ("" if file.namespace else os.environ.get("POD_NAMESPACE", "")),
        bind=options.bind,
        scope=options.scope,
        capacity=options.capacity,
        starvation_guard=options.starvation_guard,
        csi_endpoints=options.csi_endpoint,
        log_level=options.log_level,
    )
    pools = [pool_config.parse(text) for text in options.pool]
    pools += config_driver.pools_of(file, str(options.config))
    node = os.environ.get("NODE_NAME") or socket.gethostname()
    return config_node.merge(file, given, pools, node=node)
