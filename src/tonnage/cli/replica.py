"""Options and serving of verbs with leader election: several replicas run and one works."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from tonnage.api import names
from tonnage.cli.driver import serve_until_signal
from tonnage.cli.node import access_of
from tonnage.kube.client import Client
from tonnage.kube.http import HttpTransport
from tonnage.kube.leader_process import ElectedProcess
from tonnage.observe import log as logs
from tonnage.observe.exporter import Address, parse_address
from tonnage.observe.process import tune_allocator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every such verb."""
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the pod's service account)"
    )
    parser.add_argument(
        "--namespace", default="", metavar="NAME",
        help=f"of the Lease and of capacity objects (default: $POD_NAMESPACE, else {names.SYSTEM_NAMESPACE})",
    )  # fmt: skip
    parser.add_argument(
        "--identity", default="", metavar="NAME",
        help="this replica's unique identity in the Lease (default: $POD_NAME, else the host's name and the process)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", default="", metavar="[ADDRESS:]PORT",
        help="serve Prometheus metrics and /healthz (default address: loopback)",
    )  # fmt: skip
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def serve(options: argparse.Namespace, role: str, identity: str, make: Callable[[Client], ElectedProcess]) -> int:
    """Stand for election and work, until a signal. role: "controller" or "scheduler"."""
    access = access_of(options.kubeconfig)
    tune_allocator()
    logs.setup(options.log_level, as_json=options.log_format == "json")

    async def work() -> None:
        client = Client(HttpTransport(access, user_agent=f"tonnage-{role}/{identity}"))
        await serve_until_signal(make(client), f"{role}={identity}")

    asyncio.run(work())
    return 0


def identity_of(options: argparse.Namespace) -> str:
    """This replica's name."""
    return options.identity or os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"


def namespace_of(options: argparse.Namespace) -> str:
    """Where the Lease is."""
    return options.namespace or os.environ.get("POD_NAMESPACE") or names.SYSTEM_NAMESPACE


def metrics_of(options: argparse.Namespace) -> Address | None:
    """Where metrics are served, None for nowhere. Raises Invalid."""
    return parse_address(options.metrics) if options.metrics else None
