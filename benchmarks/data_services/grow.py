"""A claim of a running pod grows from 1Gi to 2Gi in the box: from the patch to the larger file system in the pod.

The pod's file system is read as `df` in the pod reads it, by statfs in its mount namespace. On a btrfs pool `df` shows
the whole pool, so there the growth is over when the claim's status has 2Gi, which is written after the limit is set.
A quota pool is left out where the kernel has no quotas of xfs.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.box.box import ROOT, Served, as_process
from benchmarks.data_services.disks import disk
from benchmarks.driver.life import GIB
from benchmarks.figure import Figure

from tonnage.base.errors import HostError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage_box.api.wait import until, until_gone
from tonnage_box.bootstrap import storage_class
from tonnage_box.cli.workloads import claim_of, pod_of_claim

MOST_RUNS = 1
BATCHES, BATCH = 5, 20
P50_MS = 300.0
LIMIT, POLL = 60.0, 0.001
NAMESPACE = "default"
_LARGER = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
CASES = {
    "btrfs": ("btrfs", ""),
    "quota, xfs": ("quota", ""),
    "image, xfs": ("image", "xfs"),
    "image, btrfs": ("image", "btrfs"),
}
"""Title -> pool, and the volumes' file system where the pool has a choice."""


async def run() -> list[Figure]:
    """All kinds of pools whose file systems grow while they are mounted; nothing without root."""
    if not ROOT:
        return []
    figures = []
    growing = "size=100Gi,sparse=yes,overcommit=yes"
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as name, ExitStack() as stack:
        pools = {kind: f"{kind}:{name}/{kind},name={kind},{growing}" for kind in ("btrfs", "image")}
        with suppress(HostError):  # kernels without quotas of xfs
            place = await asyncio.to_thread(stack.enter_context, disk(Path(name), "xfs", 200 * GIB, "prjquota"))
            pools["quota"] = f"quota:{place}/pool,name=quota,size=100Gi,overcommit=yes"
        arguments = [word for pool in pools.values() for word in ("--pool", pool)]
        async with as_process(*arguments, "--runtime", "bwrap") as box:
            for number, (title, (pool, fstype)) in enumerate(CASES.items()):
                if pool in pools:
                    figures += await _case(box, title, f"grows-{number}", pool, fstype)
    return figures


async def _case(box: Served, title: str, class_name: str, pool: str, fstype: str) -> list[Figure]:
    """Pods in batches, one growth at a time."""
    parameters = {"pool": pool, **({names.CSI_FSTYPE: fstype} if fstype else {})}
    body = storage_class(names.DRIVER, parameters=parameters)
    await box.client.create(STORAGE_CLASSES, {**body, "metadata": {"name": class_name}})
    took = []
    for batch in range(BATCHES):
        made = [f"{class_name}-{batch}-{number}" for number in range(BATCH)]
        await asyncio.gather(*(_run(box, name, class_name) for name in made))
        took += [await _grown(box, name, shows_size=pool != "btrfs") for name in made]
        await _remove(box, made)
    seen = "until df in the pod" if pool != "btrfs" else "until the claim's status"
    return [
        Figure(f"{title}: 1Gi to 2Gi, {seen} shows it, p50", statistics.median(took), "ms", at_most=P50_MS),
        Figure(f"{title}: 1Gi to 2Gi, p99", statistics.quantiles(took, n=100)[98], "ms"),
    ]


async def _run(box: Served, name: str, class_name: str) -> None:
    """A pod that waits, with a claim of its name."""
    pod = pod_of_claim(name, name)
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    await box.client.create(CLAIMS, claim_of(name, "1Gi", class_name), NAMESPACE)
    await box.client.create(PODS, pod, NAMESPACE)
    await until(box.client, PODS, name, lambda found: found.status.phase == "Running", namespace=NAMESPACE)


async def _grown(box: Served, name: str, *, shows_size: bool) -> float:
    """Milliseconds from the patch to the larger size; the claim's status has it too afterwards. Raises TimeoutError."""
    if not shows_size:
        began = time.perf_counter()
        seen = asyncio.ensure_future(until(box.client, CLAIMS, name, _has_grown, namespace=NAMESPACE))
        await box.client.patch(CLAIMS, name, _LARGER, NAMESPACE)
        await seen
        return (time.perf_counter() - began) * 1000
    root = await asyncio.to_thread(_root, name)
    try:
        before = _size(root)
        watching = asyncio.ensure_future(asyncio.to_thread(_until, lambda: _size(root) > before + GIB // 2))
        began = time.perf_counter()
        await box.client.patch(CLAIMS, name, _LARGER, NAMESPACE)
        took = (await watching - began) * 1000
    finally:
        os.close(root)
    await until(box.client, CLAIMS, name, _has_grown, namespace=NAMESPACE)
    return took


def _has_grown(claim: PersistentVolumeClaim) -> bool:
    capacity = claim.status.capacity.get("storage", "0")
    return to_bytes(capacity) == 2 * GIB and not claim.status.conditions


def _root(name: str) -> int:
    """/data in the pod, opened. Blocking. Raises TimeoutError."""
    found: list[int] = []

    def opened() -> bool:
        """A pod runs a moment before its process has its own arguments and environment."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and f"HOSTNAME={name}".encode() in (entry / "environ").read_bytes().split(
                    b"\0"
                ):
                    found.append(os.open(entry / "root" / "data", os.O_RDONLY | os.O_DIRECTORY))
                    return True
        return False

    _until(opened)
    return found[0]


def _size(root: int) -> int:
    found = os.statvfs(root)
    return found.f_blocks * found.f_frsize


def _until(holds: Callable[[], bool]) -> float:
    """When it held, in seconds of perf_counter. Blocking. Raises TimeoutError."""
    deadline = time.perf_counter() + LIMIT
    while not holds():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not grown after {LIMIT:.0f} s")
        time.sleep(POLL)
    return time.perf_counter()


async def _remove(box: Served, made: Sequence[str]) -> None:
    client: Any = box.client
    for name in made:
        await client.delete(PODS, name, NAMESPACE, grace_seconds=0)
        await client.delete(CLAIMS, name, NAMESPACE)
    for kind in (PODS, CLAIMS, VOLUMES):
        await until_gone(box.client, kind)  # type: ignore[misc]
