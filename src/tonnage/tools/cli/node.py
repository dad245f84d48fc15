"""`tonnage node`: CSI driver and agent of one node of a Kubernetes cluster, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

from tonnage.base import option
from tonnage.base.errors import NotFoundError, TonnageError
from tonnage.base.observe.process import leave_stuck
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.kubernetes.client.kubeconfig import Access
from tonnage.node.config import declared_pools, preflight
from tonnage.node.config import driver as config_driver
from tonnage.node.config import node as config_node
from tonnage.node.config.agent import AgentConfig
from tonnage.node.config.driver import DriverConfig
from tonnage.node.config.node import NODE_FILE, NodeConfig
from tonnage.tools.cli import driver
from tonnage.tools.ops import local_box
from tonnage.tools.ops.local_box import LocalBox

REQUESTS_AT_ONCE = 8
"""Of an agent: enough for a hundred pods that come at once, few enough for a thousand agents that an API server has."""


_OF_DRIVER = ("node_name", "driver_name", "topology_key", "max_volumes", "metrics", "sources", "fetch", "image_stores")
"""Options of the driver that the command line has; the others follow, or are in the file only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb. Each is also a field of --config, which they override; pools add up."""
    driver.add_pools(parser)
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the pod's service account)"
    )
    option.add_arguments(parser, DriverConfig, _OF_DRIVER)
    option.add_arguments(parser, AgentConfig)
    option.add_arguments(parser, NodeConfig)
    driver.add_check(parser)
    driver.add_log_arguments(parser, level=False)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; with --check only check."""
    from tonnage.node.process import NodeProcess

    config = configured(options)
    if options.check:
        return _check(config)
    _make_declared(config)
    if (code := driver.prepare(options, config.driver, "tonnage-node", level=config.log_level)) is not None:
        return code
    access = access_of(options.kubeconfig)

    async def serve() -> None:
        agent = f"tonnage-node/{config.driver.node_name}"
        client = Client(HttpTransport(access, user_agent=agent, at_once=REQUESTS_AT_ONCE))
        live = (options.config, lambda: configured(options)) if options.config else None
        await driver.serve_until_signal(NodeProcess(config, client, live=live), f"node={config.driver.node_name}")

    asyncio.run(serve())
    leave_stuck()
    return 0


def _check(config: NodeConfig) -> int:
    """Show the commands for declared pools, and what the machine has for the others; changes nothing."""
    failed, pending = 0, set()
    for each in config.declare:
        try:
            steps = each.plan().steps
        except TonnageError as failure:
            print(f"  [FAULT] declared {each}: {failure}")
            failed = 2
            continue
        for step in steps:
            print(f"  [{'will run' if config.make_pools else 'missing'}] declared {each}: {step}")
        pending |= {each.pool.name} if steps else set()
        failed = failed or (2 if steps and not config.make_pools else 0)
    if pending and not config.make_pools:
        print("  makePools: true (--make-pools) lets the node run these commands when it starts")
    there = [pool for pool in config.driver.pools if pool.name not in pending]
    return max(failed, driver.show(preflight.check(replace(config.driver, pools=there))))


def _make_declared(config: NodeConfig) -> None:
    """Make the declared pools, or check that they exist. Raises: PreconditionError where they may not be made."""
    if not config.declare:
        return
    if config.make_pools:
        declared_pools.make(config.declare, lambda each, step: print(f"tonnage node: {each}: done: {step}", flush=True))
    else:
        declared_pools.require_made(config.declare)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name a cluster or a box, for cluster_of()."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--kubeconfig", type=Path, metavar="FILE",
        help="the cluster (default: $KUBECONFIG, else the box that runs here, else as kubectl finds it)",
    )  # fmt: skip
    where.add_argument("--data", type=Path, metavar="DIR", help="a box's data folder: that cluster")


def cluster_of(options: argparse.Namespace) -> tuple[Access, LocalBox | None]:
    """The cluster that is meant, and the box where it is one of this machine.

    Raises: InvalidError, NotFoundError.
    """
    named = options.kubeconfig or os.environ.get("KUBECONFIG", "")
    if options.data is None and named:
        box = local_box.of(Path(named).parent)
        mine = box is not None and box.exists() and os.path.realpath(named) == os.path.realpath(box.kubeconfig)
        return kubeconfig.load(options.kubeconfig), box if mine else None
    box = local_box.of(options.data)
    if box is None:
        if options.data is not None:
            raise NotFoundError(f"{options.data}: tonnage-box is not installed here; name a cluster with --kubeconfig")
        return access_of(options.kubeconfig), None
    if (box.running() or 0) <= 0:
        if options.data is None:
            return access_of(None), None
        todo = f"`tonnage up --data {box.path}`" if box.exists() else "name another with --data or --kubeconfig"
        raise NotFoundError(f"no cluster runs in {box.path}: {todo}")
    return kubeconfig.load(box.kubeconfig), box


def access_of(file: Path | None) -> Access:
    """The cluster of a kubeconfig, else that of the pod we run in, else as kubectl finds it. Raises: InvalidError."""
    if file is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return kubeconfig.in_cluster()
    return kubeconfig.load(file)


def configured(options: argparse.Namespace) -> NodeConfig:
    """Return the command line over the file that it names. Raises: InvalidError."""
    file = config_driver.load(options.config, NODE_FILE) if options.config else {}
    pools = driver.pools_of(options, file)
    return config_node.merge(file, option.given_by(options), pools, node=socket.gethostname())
