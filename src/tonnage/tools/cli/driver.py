"""`tonnage driver`: a CSI driver for any orchestrator, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
from pathlib import Path

from tonnage.base import option
from tonnage.base.observe import log as logs
from tonnage.base.observe import trace
from tonnage.base.observe.process import end_tasks, leave_stuck, raise_file_limit, tune_allocator
from tonnage.base.option import Values
from tonnage.node.config import driver as config_driver
from tonnage.node.config import preflight
from tonnage.node.config.driver import DriverConfig
from tonnage.node.plain_driver import Serving, StandaloneDriver, serve
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools import kinds
from tonnage.storage.pools.kind import PoolConfig
from tonnage.tools.cli.output import Output

_LEFT_SECONDS = 0.5
POOL = "KIND[:WHERE][,key=value...]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb. Each is also a field of --config, which they override; pools add up."""
    add_pools(parser)
    option.add_arguments(parser, DriverConfig)
    add_check(parser)
    add_log_arguments(parser)


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the option that only checks."""
    parser.add_argument(
        "--check", action="store_true", help="check the configuration against the machine, change nothing, and exit"
    )


def add_log_arguments(parser: argparse.ArgumentParser, *, level: bool = True) -> None:
    """Add the options of the log. level: whether its level is given here only."""
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    if level:
        parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def add_pools(parser: argparse.ArgumentParser) -> None:
    """The two options that name pools."""
    parser.add_argument(
        "--pool", action="append", default=[], metavar=POOL,
        help=f"a pool: {', '.join(kinds.MODULES)}; repeatable, the first is the default one",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path, metavar="FILE.yaml", help="the node's configuration (docs/tasks/run-driver.md)"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; with --check only check."""
    config = configured(options)
    if (code := prepare(options, config, "tonnage-driver", level=options.log_level)) is not None:
        return code
    asyncio.run(serve_until_signal(StandaloneDriver(config), f"driver={config.driver_name} node={config.node_name}"))
    leave_stuck()
    return 0


def prepare(options: argparse.Namespace, config: DriverConfig, service: str, *, level: str) -> int | None:
    """Check the machine and set up the process. With --check only check, and return the exit code.

    service: its name in traces. level: of the log. Raises: as preflight.require().
    """
    findings = preflight.check(config)
    if options.check:
        return show(findings)
    preflight.require(findings)
    tune_allocator()
    raise_file_limit()
    logs.setup(level, as_json=options.log_format == "json")
    trace.setup(service, {"k8s.node.name": config.node_name})
    preflight.warn(findings)
    return None


def configured(options: argparse.Namespace) -> DriverConfig:
    """Return the command line over the file that it names. Raises: InvalidError."""
    file = config_driver.load(options.config) if options.config else {}
    return config_driver.merge(file, option.given_by(options), pools_of(options, file), node=socket.gethostname())


def pools_of(options: argparse.Namespace, file: Values) -> list[PoolConfig]:
    """Return the pools of the command line, then those of the file. Raises: InvalidError."""
    return [*map(pool_config.parse, options.pool), *config_driver.pools_of(file, str(options.config))]


async def serve_until_signal(driver: Serving, name: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await serve(driver, ended, name=name)
    await end_tasks(_LEFT_SECONDS)


def show(findings: list[preflight.PreflightFinding]) -> int:
    """Print the findings; returns the exit code."""
    out = Output()
    for finding in findings:
        mark = "FAULT" if finding.fault else "warn" if finding.warning else "ok"
        out.line(f"  [{mark}] {finding.what}: {finding.text}")
    faults = sum(finding.fault is not None for finding in findings)
    out.line(f"{faults} fault{'s' * (faults != 1)}: the driver would not start" if faults else "the driver can start")
    return 2 if faults else 0
