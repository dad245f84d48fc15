"""What a decision costs on clusters of growing size: the bare algorithm in this process, without an API server.

A pod is compiled, decided about and counted, as the scheduler does it; processor time of this thread, so that others on
the machine matter less. Without volumes; with one ephemeral volume each and one capacity object a node; with both of
these and anti-affinity to one of 50 groups on the node, spread over the zones. `python -m benchmarks scheduler`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from benchmarks.figure import Figure

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.cache import Cache
from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.plugin import SchedulingDecision
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.framework.storage_objects import StorageObjects

MOST_RUNS = 3
SIZES = (100, 1_000, 5_000, 50_000)
WAYS = ("without volumes", "with a volume", "with a volume, affinity and spread")
PODS, BATCH, ZONES, GROUPS = 1_200, 200, 10, 50
CLASS = "late"
LIMIT = 2.0


async def run() -> list[Figure]:
    """Microseconds a pod for each size, and how the largest compares to the smallest."""
    figures = []
    for way in WAYS:
        costs = [_measure(size, way) for size in SIZES]
        for size, cost in zip(SIZES, costs, strict=True):
            figures.append(Figure(f"a pod {way}, {size} nodes", cost * 1e6, "us"))
        figures.append(Figure(f"{way}: {SIZES[-1]} nodes to {SIZES[0]}", costs[-1] / costs[0], "x", at_most=LIMIT))
    return figures


def _measure(size: int, way: str) -> float:
    """Seconds of processor time for one pod, in the quickest batch after the first: others use the machine's caches."""
    cycle = _cycle(size)
    pods = list(_pods(cycle.cluster, way))
    gc.collect()
    gc.freeze()
    try:
        batches = [pods[start : start + BATCH] for start in range(0, PODS, BATCH)]
        return min([_time(cycle, batch) for batch in batches][1:])
    finally:
        gc.unfreeze()


def _time(cycle: Cycle, pods: Sequence[Pod]) -> float:
    began = time.thread_time()
    for pod in pods:
        _place(cycle, pod)
    return (time.thread_time() - began) / len(pods)


def _place(cycle: Cycle, pod: Pod) -> None:
    ask = compile_ask(pod)
    outcome = cycle.decide(ask)
    assert isinstance(outcome, SchedulingDecision), outcome
    cycle.reserve(ask, outcome)


def _cycle(size: int) -> Cycle:
    """Nodes in zones, each with a capacity object of its own."""
    objects = StorageObjects(Cache(), Cache(), Cache(), Cache())
    cycle = Cycle(Cluster(objects))
    cluster = cycle.cluster
    objects.drivers.put(_read(kinds.CSI_DRIVERS, names.DRIVER, {"spec": {"storageCapacity": True}}))
    late = {"provisioner": names.DRIVER, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    objects.classes.put(_read(kinds.STORAGE_CLASSES, CLASS, late))
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    for number in range(size):
        name = f"node-{number}"
        labels = {names.HOSTNAME_LABEL: name, names.TOPOLOGY_NODE: name, "zone": f"zone-{number % ZONES}"}
        cluster.node_changed(None, _read(kinds.NODES, name, {"status": {"allocatable": room}}, labels=labels))
        here = {"matchLabels": {names.TOPOLOGY_NODE: name}}
        body = {"storageClassName": CLASS, "nodeTopology": here, "capacity": "1Ti", "maximumVolumeSize": "1Ti"}
        cluster.capacity_changed(None, _read(kinds.CAPACITIES, name, body))
    return cycle


def _pods(cluster: Cluster, way: str) -> Iterator[Pod]:
    """The pods of a measurement; their claims are in the cache."""
    for number in range(PODS):
        name, app = f"pod-{number}", f"app-{number % GROUPS}"
        spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "50m"}}}]}
        if way != WAYS[0]:
            spec["volumes"] = [{"name": "disk", "ephemeral": {"volumeClaimTemplate": {}}}]
            cluster.objects.claims.put(_claim(name))
        if way == WAYS[2]:
            spec |= _wishes(app)
        yield _read(kinds.PODS, name, {"spec": spec}, labels={"app": app})


def _claim(pod: str) -> Any:
    spec = {
        "storageClassName": CLASS,
        "accessModes": [names.READ_WRITE_ONCE],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    owner = {"kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}
    body = {"spec": spec, "status": {"phase": "Pending"}}
    return _read(kinds.CLAIMS, f"{pod}-disk", body, ownerReferences=[owner])


def _wishes(app: str) -> dict[str, Any]:
    """Not two of a group on a node, and as many in each zone."""
    selector = {"labelSelector": {"matchLabels": {"app": app}}}
    term = {"topologyKey": names.HOSTNAME_LABEL, **selector}
    even = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **selector}
    far = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"affinity": far, "topologySpreadConstraints": [even]}


def _read(kind: Kind[Any], name: str, body: dict[str, Any], **meta: Any) -> Any:
    namespace = "default" if kind.namespaced else ""
    head = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1", **meta}
    return kind.decode(msgspec.json.encode({**body, "metadata": head}))
