"""`tonnage up`: a cluster on this machine, in the foreground or in the background (--detach)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tonnage.base import option
from tonnage.base.errors import HostError, InvalidError, TonnageError
from tonnage.base.observe import log as logs
from tonnage.base.observe.process import end_tasks, raise_file_limit, tune_allocator
from tonnage.controller.config import ControllerConfig
from tonnage.kubernetes.api.names import COMPAT_DRIVERS
from tonnage.node.config.agent import AgentConfig
from tonnage.node.config.driver import DriverConfig
from tonnage.node.config.node import NodeConfig
from tonnage.node.inline.sources import compat_inlines
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.storage.images.store import is_store
from tonnage.storage.pools import kinds
from tonnage.tools.cli.output import Output
from tonnage_box.cluster import USUAL_PORT, Box, BoxOptions
from tonnage_box.data_dir import DataFolder, Settings, default_folder, missing, remove_empty
from tonnage_box.plan import DEFAULT_POOL_SIZE, BoxPlan, plan, what_stays

_STUCK_SECONDS = 1.0  # for work that a dead disk holds
_READY = "\0ready\n"
_FAILED = "\0failed "
FLEXVOLUME = "flexvolume"
COMPAT = (*COMPAT_DRIVERS, *compat_inlines(), FLEXVOLUME)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb. The settings of a cluster are stored in its data folder."""
    parser.add_argument("--nodes", type=int, metavar="N", help="how many nodes (default: 1, or as before)")
    parser.add_argument(
        "--pool", action="append", metavar="KIND[:WHERE][,key=value...]",
        help=f"pool of volumes on each node: {', '.join(kinds.MODULES)}; repeatable, the first is the default "
        "(default: image files below the data folder, or as before)",
    )  # fmt: skip
    parser.add_argument(
        "--pool-size",
        metavar="SIZE",
        help=f"size of pools that give none, with a unit (default: {DEFAULT_POOL_SIZE})",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"data folder (default: {default_folder()})")
    parser.add_argument(
        "--port", type=int, metavar="P",
        help=f"port of the API server, 0: any free one (the one of before, at first {USUAL_PORT}; if taken, any)",
    )  # fmt: skip
    parser.add_argument("--listen", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="write it here too, owned by the user of sudo")
    parser.add_argument("--runtime", choices=("bwrap", "none"), help="run containers as processes, or not at all")
    parser.add_argument("--compat", action="append", choices=COMPAT, help="also serve another driver's names")
    parser.add_argument(
        "--scoring", choices=[strategy.value for strategy in ScoringStrategy],
        help="scoring of nodes: free cpu and memory (least-allocated), or for pods "
        "with volumes the share of free storage that they would use (default: least-allocated, or as before)",
    )  # fmt: skip
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="images for containers: a store, or a folder of layouts and "
        "archives that are loaded into the data folder's store",
    )  # fmt: skip
    parser.add_argument(
        "--require-images", action=argparse.BooleanOptionalAction,
        help="start no container whose image is in no store; without it such a container runs from this machine's /usr",
    )  # fmt: skip
    option.add_arguments(parser, ControllerConfig, ["capacity"], remark=", or as before")
    option.add_arguments(parser, AgentConfig, ["starvation_guard"], remark=", or as before")
    option.add_arguments(parser, DriverConfig, ["sources", "fetch"])
    option.add_arguments(parser, NodeConfig, ["inline"])
    parser.add_argument(
        "--csi-endpoint", action="append", default=[], metavar="[NODE=]SOCKET",
        help="also serve the CSI driver behind this socket: register it with the node's kubelet, provision volumes; "
        "repeatable, needed at every start; NODE= is optional when there is one node",
    )  # fmt: skip
    parser.add_argument(
        "--recover", action="store_true",
        help="if state.db is missing, empty or damaged: rename it and start an empty cluster; "
        "volumes stay as orphans (`tonnage volumes orphans`), all objects are lost. Otherwise no effect",
    )  # fmt: skip
    parser.add_argument("--detach", action="store_true", help="return when it is ready, and leave it running")
    parser.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))


def run(options: argparse.Namespace) -> int:
    """Start the cluster; in the foreground until Ctrl-C."""
    data = DataFolder(options.data or default_folder())
    settings = _settings(options, data.settings())
    plan_ = plan(data, settings, pool_size=options.pool_size or "", csi_endpoints=options.csi_endpoint)
    if options.detach:
        return _detach(data, lambda report: _start(options, data, plan_, report))
    return _start(options, data, plan_, None)


def _start(options: argparse.Namespace, data: DataFolder, plan_: BoxPlan, stream: TextIO | None) -> int:
    """Start the cluster, and serve it until it is ended. stream: of a detached one, open until it is ready."""
    tune_allocator()
    raise_file_limit()
    logs.setup(options.log_level)
    out = Output(stream) if stream else Output()
    kubeconfig = Path(os.path.abspath(options.kubeconfig)) if options.kubeconfig else None
    start = BoxOptions(options.listen, options.port, kubeconfig, _caller(), recover=options.recover)
    box = Box(data, plan_, start, progress=out.step, waiting=out.waits)
    try:
        _load_images(data, plan_.settings)
        return asyncio.run(_serve(box, plan_, out, detached=stream is not None))
    except TonnageError as failure:
        if stream is not None and not stream.closed:
            # The log file may be on the full disk.
            stream.write(_FAILED + " ".join(str(failure).split()) + "\n")
            stream.close()
        raise


def _caller() -> int:
    """Id of the user who called sudo; -1 without sudo."""
    text = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _settings(options: argparse.Namespace, saved: Settings | None) -> Settings:
    """The options given now, over the stored settings."""
    base = saved or Settings()
    if options.nodes is not None and not 1 <= options.nodes <= 1000:
        raise InvalidError(f"--nodes {options.nodes}: want 1 to 1000")
    if options.port is not None and not 0 <= options.port <= 65535:
        raise InvalidError(f"--port {options.port}: want 0 to 65535")
    guard = base.starvation_guard
    if options.starvation_guard is not None:
        guard = option.option_of(AgentConfig, "starvation_guard").value_of(
            options.starvation_guard, "--starvation-guard"
        )
    return Settings(
        nodes=options.nodes or base.nodes,
        pools=options.pool or base.pools,
        runtime=options.runtime or base.runtime,
        compat=[word for word in options.compat if word in COMPAT_DRIVERS] if options.compat else base.compat,
        flexvolume=FLEXVOLUME in options.compat if options.compat else base.flexvolume,
        sources=options.sources or base.sources,
        fetch=options.fetch or base.fetch,
        inline=_inline(options, base),
        scoring=ScoringStrategy(options.scoring or base.scoring),
        capacity=options.capacity or base.capacity,
        images=os.path.abspath(options.images) if options.images else base.images,
        require_images=base.require_images if options.require_images is None else options.require_images,
        starvation_guard=guard,
    )


def _inline(options: argparse.Namespace, base: Settings) -> list[str]:
    """The inline drivers, with those that --compat means; as before where neither option is given."""
    inlines = compat_inlines()
    given = [*(options.inline or ()), *(inlines[word] for word in options.compat or () if word in inlines)]
    return given or base.inline


def _load_images(data: DataFolder, settings: Settings) -> None:
    """Load a folder of archives into the box's store, in a process that ends with that work. Raises: HostError."""
    if not settings.images or is_store(Path(settings.images)):
        return
    command = [sys.executable, "-m", "tonnage", "images", "load", settings.images, "--data", str(data.path)]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        why = ended.stderr.strip().removeprefix("tonnage images: ")
        raise HostError(f"--images {settings.images}: {why or 'not loaded'}; the box is not started")


async def _serve(box: Box, plan_: BoxPlan, out: Output, *, detached: bool) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    began = time.monotonic()
    out.title(f"tonnage: {plan_.summary}")
    for warning in plan_.warnings:
        out.line(f"  ! {warning}")
    starting = asyncio.ensure_future(box.start())
    waiting = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        else:
            starting.result()
            _tell(box, plan_, out, time.monotonic() - began, detached=detached)
            await ended.wait()
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError, TonnageError):
            await starting
        if not detached and ended.is_set():
            out.line(f"\nending: pods are stopped; {what_stays(plan_.settings)}")
        await box.stop()
    await end_tasks(_STUCK_SECONDS)
    return 0


def _tell(box: Box, plan_: BoxPlan, out: Output, seconds: float, *, detached: bool) -> None:
    out.title(f"Ready in {seconds:.1f} s. Use it with the kubectl that you have:")
    out.line(f"    export KUBECONFIG={box.kubeconfig}")
    if _caller() > 0 and box.kubeconfig == box.data.kubeconfig:
        out.line("    (only root can read that file; for one of yours: `sudo tonnage up --kubeconfig ~/FILE ...`)")
    out.line("    kubectl get nodes,storageclasses")
    out.line("    kubectl apply -f examples/pod-ephemeral.yaml")
    out.line("    kubectl get csistoragecapacities -A")
    data = "" if box.data.path == default_folder() else f" --data {box.data.path}"
    if not detached:
        out.line(f"Ctrl-C ends it; {what_stays(plan_.settings)}. `tonnage down --purge{data}` removes all.")
        return
    out.line(f"`tonnage down{data}` ends it, `tonnage down --purge{data}` removes its volumes too.")
    out.line(f"Log: {box.data.log}")
    # From here on there is no reader: the waiting parent shows the output so far.
    stream = out.stream
    stream.write(_READY)
    stream.close()


def _detach(data: DataFolder, start: Callable[[TextIO], int]) -> int:
    """Start the cluster in a process of its own session; print its output until it is ready.

    It is a fork: to import all again would take as long as the start. Call it before any thread.
    """
    reader, writer = os.pipe()
    made = missing(data.path)
    data.path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    with data.log_for_writing() as log:
        position = log.tell()
        child = os.fork()
        if not child:
            _leave_session(log.fileno())
    if not child:
        _close_all_but(writer)
        return start(os.fdopen(writer, "w"))
    os.close(writer)
    with os.fdopen(reader) as lines:
        for line in lines:
            if line == _READY:
                return 0
            if line.startswith(_FAILED):
                print(f"tonnage up: {line.removeprefix(_FAILED)}", end="", file=sys.stderr)
                code = _wait(child) or 1
                _remove_log(data, made)
                return code
            try:
                print(line, end="", flush=True)
            except BrokenPipeError:  # `| head` has closed the pipe; the cluster starts anyway
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    code = _wait(child)
    sys.stderr.write(data.log.read_text(errors="replace")[position:] if data.log.exists() else "")
    _remove_log(data, made)
    return code or 1


def _leave_session(log: int) -> None:
    """Begin a session of its own, with nothing to read, and all output in the log."""
    os.setsid()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _close_all_but(ours: int) -> None:
    """Close what the caller of tonnage left open, such as a lock of its script."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != ours:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _wait(child: int) -> int:
    """Wait for the end of a child; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _remove_log(data: DataFolder, made: list[Path]) -> None:
    """Of a start that failed in a folder that we made; a cluster that came to be keeps it."""
    if made and not data.exists():
        data.log.unlink(missing_ok=True)
        remove_empty(made)
