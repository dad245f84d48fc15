"""What a box costs when it has nothing to do: memory, and how often its loop turns, a minute after load."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.box.box import ROOT, as_process
from benchmarks.figure import Figure

from tonnage.kubernetes.api.kinds import CLAIMS, PODS, VOLUMES
from tonnage_box.api.wait import until, until_gone
from tonnage_box.cli.workloads import pod_with

PODS_OF_LOAD = 20
SETTLE = 5.0
REST = 60.0
WINDOW = 30.0


async def run() -> list[Figure]:
    """A one-node box at rest, 20 pods made and removed, a minute of rest, then half a minute of watching."""
    real = ("--pool", "image,sparse=yes,overcommit=yes", "--runtime", "bwrap")
    arguments = real if ROOT else ("--pool", "fake", "--runtime", "none")
    async with as_process(*arguments, "--pool-size", "30716Mi") as box:
        await asyncio.sleep(SETTLE)
        unused = _status(box.process.pid, "VmRSS") / 1024
        for number in range(PODS_OF_LOAD):
            await box.client.create(PODS, pod_with(f"p{number}", {"data": "64Mi"}), "default")
        for number in range(PODS_OF_LOAD):
            await until(box.client, PODS, f"p{number}", lambda p: p.status.phase == "Running", namespace="default")
        for number in range(PODS_OF_LOAD):
            await box.client.delete(PODS, f"p{number}", "default", grace_seconds=1)
        for kind in (PODS, CLAIMS, VOLUMES):
            await until_gone(box.client, kind)  # type: ignore[misc]
        await box.client.close()
        await asyncio.sleep(REST)
        before = _switches(box.process.pid)
        await asyncio.sleep(WINDOW)
        turns = (_switches(box.process.pid) - before) / WINDOW
        resident = _status(box.process.pid, "VmRSS") / 1024
    return [
        Figure("resident memory of a one-node box that has had no pod", unused, "MiB", at_most=64),
        Figure("resident memory of a one-node box", resident, "MiB", at_most=64),
        Figure("turns of its loop, idle", turns, "a second", at_most=1),
    ]


def _switches(pid: int) -> int:
    """How often the main thread has gone to sleep: once for each turn of an idle loop."""
    return _status(pid, "voluntary_ctxt_switches", thread=pid)


def _status(pid: int, key: str, *, thread: int = 0) -> int:
    file = Path(f"/proc/{pid}/task/{thread}/status" if thread else f"/proc/{pid}/status")
    line = next(line for line in file.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1])
