"""Workload file: streams of pods over the day, and the nodes that they run on (docs/tasks/simulate.md).

Any fault of the file is reported by name before anything runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from tonnage.base.errors import InvalidError
from tonnage_box.simulate.workload import amounts

_MOST_NODES = 1_000_000


class VolumeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A volume of each pod. size: a distribution; storage_class: its class, by default the pool's name."""

    size: Any
    storage_class: str = msgspec.field(default="scratch", name="class")


class StreamSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pods of one kind.

    rate: maximum rate; day: hour -> share of the rate from then on; burst: pods at each arrival; restarts: how often a
    pod
    returns with its volumes, after `pause`; kind: the workload kind that creates the pods of an arrival.
    """

    name: str
    rate: str
    lifetime: Any
    kind: Literal["Pod", "Deployment", "StatefulSet", "Job"] = "Pod"
    arrivals: Literal["poisson", "even"] = "poisson"
    burst: int = 1
    day: dict[int, float] = {}
    cpu: str = "100m"
    memory: str = "128Mi"
    priority: int = 0
    volumes: list[VolumeSpec] = []
    restarts: int = 0
    pause: str = "30s"


class SimulatedNodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` equal nodes. pools: name -> size."""

    pools: dict[str, str]
    count: int = 1
    cpu: str = "32"
    memory: str = "128Gi"
    pods: int = 250


class Delays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies in seconds.

    decide: the scheduler, for one pod. write: a request to the API server. watch: until a write is visible. create,
    delete: a volume. Publication is limited as the agents limit it.
    """

    decide: str = "1ms"
    write: str = "5ms"
    watch: str = "10ms"
    create: str = "50ms"
    delete: str = "50ms"

    def seconds(self) -> dict[str, float]:
        """Return all of them by name. Raises: InvalidError."""
        return {name: amounts.duration(text) for name, text in msgspec.structs.asdict(self).items()}


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file.

    node: the node to use when only a number of nodes is given; classes: class -> pool; settle: how long to run after
    the
    last arrival.
    """

    streams: list[StreamSpec]
    node: SimulatedNodes
    duration: str = "24h"
    settle: str = "10m"
    classes: dict[str, str] = {}
    delays: Delays = Delays()

    def pool_of(self, storage_class: str) -> str:
        """The pool that serves a class."""
        return self.classes.get(storage_class, storage_class)


class _NodesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: list[SimulatedNodes]


F = TypeVar("F", Workload, _NodesFile)


def load(file: Path) -> Workload:
    """Read a workload file. Raises: InvalidError."""
    workload = _read(file, Workload)
    try:
        _check(workload)
    except InvalidError as failure:
        raise InvalidError(f"{file}: {failure}") from None
    return workload


def load_nodes(given: str, workload: Workload) -> list[SimulatedNodes]:
    """The nodes: a number of the workload's own, or a file that lists them. Raises: InvalidError."""
    if given.isdecimal():
        nodes = [msgspec.structs.replace(workload.node, count=int(given))]
    else:
        nodes = _read(Path(given), _NodesFile).nodes
    for node in nodes:
        _check_node(node)
    if not nodes or sum(node.count for node in nodes) > _MOST_NODES:
        raise InvalidError(f"--nodes {given}: from 1 to {_MOST_NODES} nodes are possible")
    wanted = {workload.pool_of(v.storage_class) for stream in workload.streams for v in stream.volumes}
    if lacking := wanted - {pool for node in nodes for pool in node.pools}:
        raise InvalidError(f"no node has a pool {', '.join(sorted(lacking))}, which the workload's classes ask for")
    return nodes


def _read(file: Path, form: type[F]) -> F:
    try:
        return msgspec.yaml.decode(file.read_bytes(), type=form)
    except OSError as failure:
        raise InvalidError(f"{file} cannot be read: {failure.strerror}") from failure
    except msgspec.MsgspecError as failure:
        if kind := _kubernetes_kind(file):
            raise InvalidError(
                f"{file}: this is a {kind} of Kubernetes, not a workload: a workload lists streams of pods, as "
                "examples/workloads/ci-burst.yaml; docs/tasks/simulate.md describes it"
            ) from None
        raise InvalidError(f"{file}: {failure}") from failure


def _kubernetes_kind(file: Path) -> str:
    """The kind of the first object in a file with objects of Kubernetes, "" for any other file."""
    try:
        first = next(iter(yaml.safe_load_all(file.read_bytes())), None)
    except (OSError, yaml.YAMLError):
        return ""
    return str(first["kind"]) if isinstance(first, dict) and {"apiVersion", "kind"} <= first.keys() else ""


def _check(workload: Workload) -> None:
    if not workload.streams:
        raise InvalidError("there is no stream")
    stream_names = [stream.name for stream in workload.streams]
    if len(set(stream_names)) != len(stream_names):
        raise InvalidError("two streams have the same name")
    if amounts.duration(workload.duration) <= 0:
        raise InvalidError("duration must be above 0")
    amounts.duration(workload.settle)
    workload.delays.seconds()
    _check_node(workload.node)
    for stream in workload.streams:
        try:
            _check_stream(stream)
        except InvalidError as failure:
            raise InvalidError(f"stream {stream.name}: {failure}") from None


def _check_stream(stream: StreamSpec) -> None:
    if amounts.rate(stream.rate) <= 0:
        raise InvalidError("the rate must be above 0")
    if stream.burst < 1 or stream.restarts < 0:
        raise InvalidError("burst must be at least 1, restarts at least 0")
    if any(not 0 <= hour <= 23 or not 0 <= share <= 1 for hour, share in stream.day.items()):
        raise InvalidError("day takes hours from 0 to 23 with shares of the rate from 0 to 1")
    if stream.restarts and stream.kind in ("Deployment", "Job"):
        raise InvalidError(f"restarts are for pods that come back to their volumes: not those of a {stream.kind}")
    if stream.day and not any(stream.day.values()):
        raise InvalidError("day has no hour with a share above 0")
    amounts.duration(stream.pause)
    amounts.distribution(stream.lifetime, amounts.duration)
    amounts.size(stream.memory)
    amounts.size(stream.cpu)
    for volume in stream.volumes:
        amounts.distribution(volume.size, amounts.size)


def _check_node(node: SimulatedNodes) -> None:
    if node.count < 1 or node.pods < 1:
        raise InvalidError("a node's count and pods must be at least 1")
    for text in (node.cpu, node.memory, *node.pools.values()):
        amounts.size(text)
