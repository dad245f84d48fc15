"""Options and serving of verbs with leader election: several replicas run and one works."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tonnage.base import option
from tonnage.base.observe import log as logs
from tonnage.base.observe.process import tune_allocator
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.kubernetes.client.leader_process import ElectedProcess, ReplicaConfig
from tonnage.tools.cli.driver import add_log_arguments, serve_until_signal
from tonnage.tools.cli.node import access_of

Config = TypeVar("Config", bound=ReplicaConfig)


def add_arguments(parser: argparse.ArgumentParser, config: type) -> None:
    """Add the options of a process with that configuration."""
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the pod's service account)"
    )
    option.add_arguments(parser, config)
    add_log_arguments(parser)


def serve(
    options: argparse.Namespace, role: str, config: Config, make: Callable[[Config, Client], ElectedProcess]
) -> int:
    """Stand for election and work, until a signal. role: "controller" or "scheduler"."""
    access = access_of(options.kubeconfig)
    tune_allocator()
    logs.setup(options.log_level, as_json=options.log_format == "json")

    async def work() -> None:
        client = Client(HttpTransport(access, user_agent=f"tonnage-{role}/{config.identity}"))
        await serve_until_signal(make(config, client), f"{role}={config.identity}")

    asyncio.run(work())
    return 0


def configured(options: argparse.Namespace, config: type[Config]) -> Config:
    """Return the configuration from the command line and the environment. Raises: InvalidError."""
    identity = f"{socket.gethostname()}-{os.getpid()}"
    return config(**{"identity": identity, **option.read(config, option.given_by(options))})
