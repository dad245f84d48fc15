"""`tonnage pools`: size, allocation and faults of each pool."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from tonnage.storage.pools.disk_commitment import DiskCommitment, commitments
from tonnage.tools.cli import listing, pool_setup
from tonnage.tools.ops import sources
from tonnage.tools.ops.report import PoolReport
from tonnage.tools.ops.sources import Wanted

_COLUMNS = ("NODE", "POOL", "KIND", "SIZE", "FREE", "LARGEST", "ALLOCATED", "INLINE", "ERASING", "VOLUMES", "WHERE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb, and the actions that change something."""
    listing.add_arguments(parser)
    actions = parser.add_subparsers(dest="action", metavar="[list|init|extend]")
    summary = "show the pools, as `tonnage pools` does"
    again = actions.add_parser("list", help=summary, description=f"{summary.capitalize()}, with its options.")
    listing.add_arguments_again(again)
    pool_setup.add_arguments(actions)


def run(options: argparse.Namespace) -> int:
    """Show the pools; 1 when one cannot be read. Or make one, or make it larger."""
    if options.action not in (None, "list"):
        return pool_setup.run(options)
    reports, disks = asyncio.run(_read(listing.wanted(options)))
    rows = [_row(report) for report in reports]
    document: dict[str, Any] = {"pools": reports, "disks": [_disk(disk) for disk in disks]}
    listing.show(options.output, _COLUMNS, rows, document)
    if options.output == "table":
        for disk in disks:
            print(f"    disk of {disk.disk}: {disk}")
    for report in reports:
        for line in _lacks(report):
            print(f"tonnage pools: pool {report.pool}: {line}", file=sys.stderr)
    bad = [report for report in reports if not report.readable]
    for report in bad:
        print(f"tonnage pools: pool {report.pool}: {report.state}", file=sys.stderr)
    return 1 if bad else 0


async def _read(wanted: Wanted) -> tuple[list[PoolReport], list[DiskCommitment]]:
    async with sources.opened(wanted) as found:
        return await found.pools(), commitments(found.configs)


def _lacks(report: PoolReport) -> list[str]:
    """Faults of a readable pool, with remedies."""
    ill = report.abnormal
    words = "volume is abnormal" if ill == 1 else "volumes are abnormal"
    return [*report.lacks, *([f"{ill} {words}: `tonnage volumes list` says which and why"] if ill else [])]


def _row(report: PoolReport) -> tuple[str, ...]:
    numbers = (report.size, report.free, report.largest, report.allocated)
    volumes = "-" if report.volumes is None else str(report.volumes)
    where = report.where or "-"
    if report.state != "ready":
        where += f" ({report.state if report.readable else 'cannot be read'})"
    sizes = map(listing.size, numbers)
    return (
        report.node or "-",
        report.pool,
        report.kind or "-",
        *sizes,
        _inline(report),
        listing.size(report.erasing),
        volumes,
        where,
    )


def _inline(report: PoolReport) -> str:
    """Allocated bytes of inline volumes, of those reserved for them."""
    if not report.inline:
        return listing.size(report.inline_allocated) if report.inline_allocated else "-"
    return f"{listing.size(report.inline_allocated)}/{listing.size(report.inline)}"


def _disk(disk: DiskCommitment) -> dict[str, Any]:
    return {
        "disk": str(disk.disk),
        "pools": list(disk.pools),
        "size": disk.reserved,
        "free": disk.free,
        "lacks": max(0, disk.reserved - disk.free),
    }
