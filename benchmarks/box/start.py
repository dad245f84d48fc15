"""How soon a box is there, and a pod with a disk of its own in it."""

from __future__ import annotations

import time

from benchmarks.box.box import ROOT, as_process
from benchmarks.figure import Figure

from tonnage.kubernetes.api.kinds import NODES, PODS
from tonnage_box.api.wait import until
from tonnage_box.cli.workloads import pod_with


async def run() -> list[Figure]:
    """`tonnage up` of one node; then a pod with 4Gi, containers and mounts included where this user may."""
    real = ("--pool", "image,sparse=yes,overcommit=yes", "--runtime", "bwrap")
    arguments = real if ROOT else ("--pool", "fake", "--runtime", "none")
    async with as_process(*arguments, "--pool-size", "30716Mi") as box:
        await until(box.client, NODES, "node-1", lambda n: "tonnage" in str(n.metadata.annotations))
        began = time.monotonic()
        await box.client.create(PODS, pod_with("p", {"data": "4Gi"}), "default")
        await until(box.client, PODS, "p", lambda p: p.status.phase == "Running", namespace="default")
        took = time.monotonic() - began
    return [
        Figure("tonnage up until the API server is ready", box.ready, "s", at_most=1.0),
        Figure("apply of a 4Gi pod until it is Running", took * 1000, "ms", at_most=300),
    ]
