"""500 Jobs that finish and stay, on a pool for the volumes of 20: how soon the disk of one is another's.

The class has tonnage.dev/reclaim-finished. Each Job's pod runs 4 s. Ends and starts are as a watch of the pods shows
them: the start of a pod after the first 20 belongs to the earliest end that no other start belongs to.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.box.box import ROOT, as_process
from benchmarks.figure import Figure

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import JOBS, PODS, STORAGE_CLASSES
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers

MOST_RUNS = 1
COUNT, AT_ONCE, SECONDS = 500, 20, 4
LIMIT = 900.0
POOL = f"image,name=scratch,size={AT_ONCE * 200 + 100}Mi,sparse=yes"


async def run() -> list[Figure]:
    """All Jobs at once on one node; nothing without root."""
    if not ROOT:
        return []
    async with as_process("--nodes", "1", "--pool", POOL) as box:
        started, ended, took = await _all_done(box.client)
    waits = sorted(start - end for start, end in zip(started[AT_ONCE:], ended, strict=False))
    return [
        Figure(f"{COUNT} Jobs of {SECONDS} s, {AT_ONCE} at once: until all have finished", took, "s"),
        Figure("a Job's start after the end of the one whose disk it gets, p50", waits[len(waits) // 2], "s"),
        Figure("the longest", waits[-1], "s", at_most=1),
    ]


async def _all_done(client: Client) -> tuple[list[float], list[float], float]:
    """The times of all starts and all ends, in order, and the seconds of it all. Raises TimeoutError."""
    informers = Informers(client)
    pods, done = informers.of(PODS), asyncio.Event()
    started, ended = dict[str, float](), dict[str, float]()

    def changed(_old: Pod | None, new: Pod | None) -> None:
        if new is None:
            return
        if new.status.phase in ("Running", "Succeeded"):
            started.setdefault(new.key, time.monotonic())
        if new.status.phase == "Succeeded":
            ended.setdefault(new.key, time.monotonic())
        if len(ended) == COUNT:
            done.set()

    pods.cache.on_change(changed)
    informers.start()
    await pods.wait_synced()
    await client.create(STORAGE_CLASSES, _class())
    began = time.monotonic()
    async with asyncio.timeout(LIMIT):
        for number in range(COUNT):
            await client.create(JOBS, _job(number), "default")
        await done.wait()
    took = time.monotonic() - began
    await informers.close()
    return sorted(started.values()), sorted(ended.values()), took


def _class() -> dict[str, Any]:
    return {
        "metadata": {"name": "jobs"},
        "provisioner": names.DRIVER,
        "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
        "parameters": {names.RECLAIM_FINISHED: "true"},
    }


def _job(number: int) -> dict[str, Any]:
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "jobs",
        "resources": {"requests": {"storage": "200Mi"}},
    }
    container = {
        "name": "part",
        "image": "busybox",
        "command": ["sh", "-c", f"echo {number} > /scratch/part && sleep {SECONDS}"],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}],
    }
    return {"metadata": {"name": f"job-{number}"}, "spec": {"template": {"spec": pod}}}
