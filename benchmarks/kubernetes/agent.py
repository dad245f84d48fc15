"""What a volume costs an agent: one node on a real control plane, 100 pods with a 1Gi ephemeral volume each.

`python -m benchmarks agent`.
"""

from __future__ import annotations

import sys

from benchmarks.figure import Figure
from benchmarks.kubernetes import stacks
from benchmarks.kubernetes.nodes import kubelets
from benchmarks.kubernetes.plane import plane
from benchmarks.kubernetes.pods import Pods
from cluster import programs

PODS = 100


async def run() -> list[Figure]:
    """Processor time of a volume's whole life, and memory while there are volumes; none where there is no cluster."""
    try:
        async with plane(nodes=1, raised=True, drivers=stacks.DRIVERS) as cluster:
            await stacks.install(cluster)
            async with kubelets(cluster.client) as informers, stacks.tonnage(cluster, informers) as stack:
                await Pods(cluster.client, informers, stack, "first", 1).burst()
                cpu, pods = stack.cpu(), Pods(cluster.client, informers, stack, "burst", PODS)
                await pods.create()
                rss, _ = stacks.memory(stack.pids[0])
                await pods.delete()
                cost = (stack.cpu() - cpu) / PODS * 1000
    except (programs.Missing, FileNotFoundError) as reason:
        print(f"agent: {reason}", file=sys.stderr)
        return []
    return [Figure("agent: CPU a volume", cost, "ms"), Figure(f"agent with {PODS} volumes: RSS", rss, "MiB")]
