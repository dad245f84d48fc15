"""`tonnage controller`: the duties of a Kubernetes cluster that no node can have, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from tonnage.api import names
from tonnage.apps.controller import ControllerConfig, ControllerProcess
from tonnage.apps.process import tune_allocator
from tonnage.cli.driver import serve_until_signal
from tonnage.cli.node import access_of
from tonnage.errors import Invalid
from tonnage.kube.client import Client
from tonnage.kube.http import HttpTransport
from tonnage.observe import log as logs
from tonnage.observe.exporter import parse_address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the pod's service account)"
    )
    parser.add_argument(
        "--namespace", default="", metavar="NAME",
        help=f"of the Lease and of capacity objects (default: $POD_NAMESPACE, else {names.SYSTEM_NAMESPACE})",
    )  # fmt: skip
    parser.add_argument(
        "--identity", default="", metavar="NAME",
        help="this replica's name in the Lease, no other's (default: $POD_NAME, else the host's name and the process)",
    )  # fmt: skip
    parser.add_argument(
        "--driver", action="append", default=[], metavar="NAME=TOPOLOGY_KEY",
        help=f"another CSI driver that the agents serve, beside {names.DRIVER}; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", default="", metavar="[ADDRESS:]PORT",
        help="serve Prometheus metrics and /healthz (loopback unless told)",
    )  # fmt: skip
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def run(options: argparse.Namespace) -> int:
    """Stand for election and work, until a signal."""
    config = configured(options)
    access = access_of(options.kubeconfig)
    tune_allocator()
    logs.setup(options.log_level, as_json=options.log_format == "json")

    async def serve() -> None:
        client = Client(HttpTransport(access, user_agent=f"tonnage-controller/{config.identity}"))
        await serve_until_signal(ControllerProcess(config, client), f"controller={config.identity}")

    asyncio.run(serve())
    return 0


def configured(options: argparse.Namespace) -> ControllerConfig:
    """What the command line and the environment say. Raises Invalid."""
    return ControllerConfig(
        identity=options.identity or os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        namespace=options.namespace or os.environ.get("POD_NAMESPACE") or names.SYSTEM_NAMESPACE,
        drivers={names.DRIVER: names.TOPOLOGY_NODE, **drivers_of(options.driver)},
        metrics=parse_address(options.metrics) if options.metrics else None,
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
