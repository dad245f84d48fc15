"""Paths that a kubelet serves through nodes/proxy: `stats/summary`, `metrics` and `healthz`.

Fields are those of Kubernetes' kubelet/pkg/apis/stats/v1alpha1, without CPU, memory and network. Others are rejected.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiError
from tonnage.csi.client.types import VolumeUse
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.kubelet.containers.paths import Paths
from tonnage_box.kubelet.stats.volume_stats import PodVolumeUse, VolumeStats
from tonnage_box.kubelet.volumes.plugins import RegisteredDrivers
from tonnage_box.kubelet.volumes.volumes import VolumeManager

JSON, TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"
_PATHS = ("healthz", "metrics", "stats/summary")
_METRICS = (
    ("available_bytes", "Bytes that are available in the volume", "available"),
    ("capacity_bytes", "Size of the volume in bytes", "total"),
    ("inodes", "Inodes of the volume", "inodes"),
    ("inodes_free", "Free inodes of the volume", "inodes_free"),
    ("inodes_used", "Used inodes of the volume", "inodes_used"),
    ("used_bytes", "Used bytes of the volume", "used"),
)
_ABNORMAL = "Whether the driver says that the volume is abnormal: 1 if so"


class KubeletApi:
    """Answers for one node."""

    def __init__(self, node: str, paths: Paths, drivers: RegisteredDrivers, volumes: VolumeManager) -> None:
        self._node, self._root = node, paths.root
        self._stats = VolumeStats(paths, drivers, volumes.mounted)

    async def answer(self, path: str, pods: Sequence[Pod]) -> tuple[str, bytes]:
        """Content type and content of a path. pods: those of the node. Raises: ApiError."""
        match path.strip("/"):
            case "healthz":
                return "text/plain; charset=utf-8", b"ok"
            case "stats/summary":
                return JSON, msgspec.json.encode(self._summary(pods, await self._stats.of(pods)))
            case "metrics":
                return TEXT, metrics_text(await self._stats.of(pods)).encode()
        text = f"the kubelet of the box serves {', '.join(_PATHS)} through nodes/proxy, and not {path[:80]!r}"
        raise ApiError(text, code=404, reason="NotFound")

    def _summary(self, pods: Iterable[Pod], uses: Sequence[PodVolumeUse]) -> dict[str, Any]:
        by_pod: dict[str, list[dict[str, Any]]] = {}
        for one in uses:
            by_pod.setdefault(one.pod.metadata.uid, []).append(_volume(one))
        node = {"nodeName": self._node, "fs": _file_system(self._root), "systemContainers": None, "runtime": {}}
        return {"node": node, "pods": [_pod(pod, by_pod.get(pod.metadata.uid, [])) for pod in pods]}


def _pod(pod: Pod, volumes: list[dict[str, Any]]) -> dict[str, Any]:
    meta = pod.metadata
    containers = [
        {"name": status.name, "startTime": status.state.running.get("startedAt")}
        for status in pod.status.container_statuses
        if status.state.running is not None
    ]
    return {
        "podRef": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "startTime": pod.status.start_time,
        "containers": containers,
        "volume": volumes,
    }


def _volume(one: PodVolumeUse) -> dict[str, Any]:
    shown: dict[str, Any] = {"time": rfc3339(one.at), **_fields(one.use), "name": one.name}
    if one.claim:
        shown["pvcRef"] = {"name": one.claim, "namespace": one.pod.metadata.namespace}
    if one.use.health is not None:
        shown["volumeHealthStats"] = {"abnormal": one.use.health.abnormal}
    return shown


def _fields(use: VolumeUse) -> dict[str, int]:
    return {
        "availableBytes": use.available,
        "capacityBytes": use.total,
        "usedBytes": use.used,
        "inodesFree": use.inodes_free,
        "inodes": use.inodes,
        "inodesUsed": use.inodes_used,
    }


def _file_system(root: str) -> dict[str, Any]:
    found = os.statvfs(root)
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    use = VolumeUse(total, used, free, found.f_files, found.f_files - found.f_ffree, found.f_ffree)
    return {"time": rfc3339(time.time()), **_fields(use)}


def metrics_text(uses: Iterable[PodVolumeUse]) -> str:
    """The kubelet_volume_stats_* metrics of claims; one claim that several pods use counts once."""
    by_claim = {(one.pod.metadata.namespace, one.claim): one.use for one in uses if one.claim}
    labels = {key: f'{{namespace="{key[0]}",persistentvolumeclaim="{key[1]}"}}' for key in by_claim}
    lines = []
    for word, text, value in _METRICS:
        name = f"kubelet_volume_stats_{word}"
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{labels[key]} {getattr(use, value)}" for key, use in by_claim.items()]
    name = "kubelet_volume_stats_health_status_abnormal"
    lines += [f"# HELP {name} {_ABNORMAL}", f"# TYPE {name} gauge"]
    reported = ((key, use.health) for key, use in by_claim.items())
    lines += [f"{name}{labels[key]} {int(health.abnormal)}" for key, health in reported if health is not None]
    return "\n".join(lines) + "\n"
