"""`tonnage driver`: a CSI driver for any orchestrator, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import threading
from pathlib import Path

from tonnage.api import names
from tonnage.cli.output import Output
from tonnage.node.config import driver as config_driver
from tonnage.node.config import preflight
from tonnage.node.config.driver import DriverConfig, DriverFile
from tonnage.node.plain_driver import Serving, StandaloneDriver, leave, serve
from tonnage.observe import log as logs
from tonnage.observe import trace
from tonnage.observe.process import raise_file_limit, tune_allocator
from tonnage.pools import config as pool_config

POOL = "KIND[:WHERE][,key=value...]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb. Each is also a field of --config, which they override; pools add up."""
    parser.add_argument(
        "--endpoint", default="", metavar="unix:///DIR/csi.sock",
        help="where to listen (default: $CSI_ENDPOINT)",
    )  # fmt: skip
    add_pools(parser)
    parser.add_argument("--node-name", default="", metavar="NAME", help="default: $NODE_NAME, else the host's name")
    parser.add_argument("--driver-name", default="", metavar="NAME", help=f"default: {names.DRIVER}")
    parser.add_argument("--topology-key", default="", metavar="KEY", help=f"default: {names.TOPOLOGY_NODE}")
    parser.add_argument(
        "--max-volumes", type=int, default=0, metavar="N", help="maximum number of volumes of the node, 0: no limit"
    )
    parser.add_argument(
        "--registry", default="", metavar="DIR", help="register with a kubelet, in its folder plugins_registry"
    )
    parser.add_argument(
        "--state", default="", metavar="DIR",
        help=f"folder for mounts of inline volumes (default: {config_driver.default_state(names.DRIVER)})",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", default="", metavar="[ADDRESS:]PORT", help="serve Prometheus metrics (default address: loopback)"
    )
    add_sources(parser)
    parser.add_argument(
        "--kubelet-root", default="", metavar="DIR",
        help="refuse staging and target paths that are not beneath DIR, as /var/lib/kubelet; it may be a symlink",
    )  # fmt: skip
    parser.add_argument("--cgroups", default="", metavar="DIR", help="where cgroups are mounted (/sys/fs/cgroup)")
    parser.add_argument(
        "--io-cgroup", default="", metavar="GROUP",
        help="the cgroup whose IO is limited where a path names no pod, as nomad.slice (default: refused)",
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true", help="check the configuration against the machine, change nothing, and exit"
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def add_sources(parser: argparse.ArgumentParser) -> None:
    """The option that allows folders as content of new volumes."""
    parser.add_argument(
        "--source", action="append", default=[], metavar="DIR",
        help="a folder of the node from which the class parameter source may populate volumes; repeatable",
    )  # fmt: skip


def add_pools(parser: argparse.ArgumentParser) -> None:
    """The two options that name pools."""
    parser.add_argument(
        "--pool", action="append", default=[], metavar=POOL,
        help=f"a pool: {', '.join(pool_config.KINDS)}; repeatable, the first is the default one",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path, metavar="FILE.yaml", help="the node's configuration (docs/tasks/run-driver.md)"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; with --check only check."""
    config = configured(options)
    findings = preflight.check(config)
    if options.check:
        return show(findings)
    preflight.require(findings)
    tune_allocator()
    raise_file_limit()
    logs.setup(options.log_level, as_json=options.log_format == "json")
    trace.setup("tonnage-driver", {"k8s.node.name": config.node_name})
    preflight.warn(findings)
    asyncio.run(serve_until_signal(StandaloneDriver(config), f"driver={config.driver_name} node={config.node_name}"))
    leave_stuck()
    return 0


def leave_stuck() -> None:
    """End the process if a thread would keep it."""
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        leave(0)  # Python would wait for a thread that a dead disk holds


def configured(options: argparse.Namespace) -> DriverConfig:
    """The command line over the file that it names. Raises Invalid."""
    file = config_driver.read(options.config) if options.config else DriverFile()
    given = DriverFile(
        endpoint=options.endpoint or ("" if file.endpoint else os.environ.get("CSI_ENDPOINT", "")),
        node_name=options.node_name,
        driver_name=options.driver_name,
        topology_key=options.topology_key,
        max_volumes=options.max_volumes,
        registry=options.registry,
        state=options.state,
        kubelet_root=options.kubelet_root,
        metrics=options.metrics,
        sources=options.source,
        cgroups=options.cgroups,
        io_cgroup=options.io_cgroup,
    )
    pools = [pool_config.parse(text) for text in options.pool]
    pools += config_driver.pools_of(file, str(options.config))
    node = os.environ.get("NODE_NAME") or socket.gethostname()
    return config_driver.merge(file, given, pools, node=node)


async def serve_until_signal(driver: Serving, name: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await serve(driver, ended, name=name)


def show(findings: list[preflight.PreflightFinding]) -> int:
    """Print the findings; returns the exit code."""
    out = Output()
    for finding in findings:
        mark = "FAULT" if finding.fault else "warn" if finding.warning else "ok"
        out.line(f"  [{mark}] {finding.what}: {finding.text}")
    faults = sum(finding.fault is not None for finding in findings)
    out.line(f"{faults} fault{'s' * (faults != 1)}: the driver would not start" if faults else "the driver can start")
    return 2 if faults else 0
