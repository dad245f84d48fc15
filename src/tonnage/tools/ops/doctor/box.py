"""Checks of a box: its process, machine, nodes and pools. Changes nothing.

The checks of classes, capacity, claims and volumes are those of an installation.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence

from tonnage.base.errors import HostError, TonnageError
from tonnage.storage.pools.disk_commitment import commitments
from tonnage.storage.pools.kind import PoolConfig
from tonnage.tools.ops import sources
from tonnage.tools.ops.cluster_snapshot import View
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn
from tonnage.tools.ops.doctor.machine import knows
from tonnage.tools.ops.local_box import LocalBox
from tonnage.tools.ops.report import PoolReport


async def check(view: View, box: LocalBox | None) -> list[Finding]:
    """Check the box that the view shows. box: as it is on this machine, None if its data folder is not known."""
    found = list(_nodes(view))
    if box is None or not box.exists():
        text = "the data folder of this box is unknown, so its machine and pools are not checked"
        return [*found, warn("box", "data folder", text, "name it with --data, on the machine where the box runs")]
    return [*await asyncio.to_thread(lambda: list(_machine(box))), *found, *await _pools(box)]


def _nodes(view: View) -> Iterator[Finding]:
    ready = []
    for node in view.nodes:
        condition = next((c for c in node.status.conditions if c.type == "Ready"), None)
        if condition is not None and condition.status == "True":
            ready.append(node.metadata.name)
        else:
            text = f"it is not Ready: {condition.message if condition is not None else 'no condition reported'}"
            yield fail("nodes", node.metadata.name, text, "see the box's tonnage.log; restart the box")
    if ready:
        yield ok("nodes", few(sorted(ready)), f"{len(ready)} nodes are Ready")


def _machine(box: LocalBox) -> Iterator[Finding]:
    process = box.running() or 0
    if process > 0:
        yield ok("box", str(box.path), f"process {process} runs it")
    else:
        yield fail("box", str(box.path), "no process runs it", f"tonnage up --data {box.path}")
    configs = [config for pools in box.nodes().values() for config in pools]
    if fault := _missing(box, configs):
        yield fail("machine", "kernel and programs", fault, "install or load it")
    else:
        known = few(sorted({config.kind.name for config in configs}))
        yield ok("machine", "kernel and programs", f"all that {known} pools need is available")
    for disk in commitments(configs):
        about = f"disk of {disk.disk}"
        if disk.fits:
            yield ok("machine", about, str(disk))
        else:
            yield warn("machine", about, str(disk), "free space on it before the pools are full")


def _missing(box: LocalBox, configs: Sequence[PoolConfig]) -> str:
    """Return what the machine lacks, or ""."""
    try:
        box.check_programs()
    except HostError as failure:
        return str(failure)
    wanted = dict.fromkeys(name for config in configs for name in config.kind.formats)
    missing = [name for name in wanted if not knows(name)]
    return f"the kernel cannot mount {few(missing)}: load these modules" if missing else ""


async def _pools(box: LocalBox) -> list[Finding]:
    if os.geteuid() != 0 and not os.access(box.path, os.W_OK):
        text = "this user may not read the pools"
        return [warn("pools", str(box.path), text, "run it as the user who started the box")]
    try:
        async with sources.opened(sources.Wanted(data=box.path)) as found:
            reports = await found.pools()
    except TonnageError as failure:
        return [fail("pools", str(box.path), str(failure), "see the box's tonnage.log")]
    return [finding for report in reports for finding in _pool(report)]


def _pool(report: PoolReport) -> Iterator[Finding]:
    about = f"{report.pool} of {report.node}"
    if not report.readable:
        yield fail("pools", about, f"it cannot be read: {report.state}", "correct that, and restart the box")
        return
    if report.abnormal:
        text = f"{report.abnormal} of its volumes are abnormal"
        yield fail("pools", about, text, "run tonnage volumes list: it shows which, and why")
    for lack in report.lacks:
        yield warn("pools", about, lack, "do what it says")
    if not report.abnormal and not report.lacks:
        yield ok("pools", about, f"it is open, with {report.volumes or 0} volumes")
