"""Node object of a kubelet: created at start, updated on change and every 5 minutes as a heartbeat.

DiskPressure is reported while the disk below the kubelet's folder is nearly full.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tonnage import __version__
from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.base.errors import ApiError, UnavailableError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import NODES
from tonnage.kubernetes.api.meta import condition, to_builtins
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.client.client import Client, StrategicPatch, refer
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.provisioning.claims.bind import find
from tonnage_box.kubelet.pods.eviction import disk_space
from tonnage_box.kubelet.volumes.sources import NodeFields

log = logging.getLogger(__name__)
HEARTBEAT = 300.0
KUBELET_VERSION = f"v1.36.0+tonnage-{__version__}"
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
_HEALTHY = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
_PRESSED = tuple(
    ("DiskPressure", "True", "KubeletHasDiskPressure", "kubelet has disk pressure") if row[0] == "DiskPressure" else row
    for row in _HEALTHY
)


def machine(root: Path, *, pods: int = 110) -> dict[str, str]:
    """Allocatable quantities of this machine; ephemeral-storage is the size of the disk below root."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory // 1024}Ki",
        "ephemeral-storage": from_bytes(shutil.disk_usage(_existing(root)).total),
        "pods": str(pods),
    }


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _is_ready(node: Node) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


def architecture() -> str:
    """As Kubernetes names it."""
    return _ARCH.get(platform.machine(), platform.machine())


class NodeObject:
    """Registers the node and maintains its status. root: the kubelet's folder."""

    disk_every = 10.0
    """Seconds between two looks at the disk, as of the kubelet's eviction manager."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        clock: Clock,
        node: NodeFields,
        *,
        runtime: str,
        root: str,
    ) -> None:
        self._client, self._events, self._clock = client, events, clock
        self._node, self._name, self._runtime, self._root = node, node.name, runtime, root
        self._labels = {
            names.HOSTNAME_LABEL: names.label_value(node.name),
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": architecture(),
        }
        self._has_pressure = False
        self._is_reported = False  # an earlier process may have reported otherwise

    async def register(self) -> Node:
        """Create or update the Node. Idempotent. Raises: ApiError."""
        node = await find(self._client, NODES, self._name)
        if node is None:
            body = {"metadata": {"name": self._name, "labels": self._labels}, "spec": {}, "status": self._status(None)}
            node = await self._client.create(NODES, body)
        missing = {key: value for key, value in self._labels.items() if node.metadata.labels.get(key) != value}
        if missing:
            node = await self._client.patch(NODES, self._name, {"metadata": {"labels": missing}})
        # Some API servers keep the status that came with create, others drop it.
        return node if self._current(node) else await self._patch_status(self._status(node))

    async def _patch_status(self, status: Mapping[str, Any]) -> Node:
        patch = StrategicPatch(status=dict(status))  # conditions that others write stay
        return await self._client.patch(NODES, self._name, patch, subresource="status")

    async def repair(self, node: Node) -> None:
        """Write the conditions of a node that is said not to be Ready, though this kubelet runs."""
        if _is_ready(node):
            return
        try:
            await self._patch_status({"conditions": self._conditions(node)})
        except (ApiError, UnavailableError) as failure:
            log.info("status not written node=%s error=%s", self._name, failure)

    def _current(self, node: Node) -> bool:
        return _is_ready(node) and node.status.allocatable == self._node.allocatable

    async def watch_disk(self) -> None:
        """Report DiskPressure, and its end, until cancelled."""
        while True:
            try:
                await self._check_disk()
            except (ApiError, UnavailableError, OSError) as failure:
                log.info("disk pressure not reported node=%s error=%s", self._name, failure)
            await self._clock.sleep(self.disk_every)

    async def _check_disk(self) -> None:
        space = disk_space(self._root)
        free, total, limit = space.available, space.total, space.threshold
        has_pressure = free < (limit * 5 // 4 if self._has_pressure else limit)  # not to and fro at the limit
        if has_pressure == self._has_pressure and self._is_reported:
            return
        node = await self._client.get(NODES, self._name)
        self._has_pressure, self._is_reported = has_pressure, False
        is_written = any(c.type == "DiskPressure" and c.status == "True" for c in node.status.conditions)
        if is_written != has_pressure:
            await self._patch_status({"conditions": self._conditions(node)})
        self._is_reported = True
        if is_written == has_pressure:
            return
        text = f"{free >> 20}Mi of {total >> 20}Mi are available on the disk of {self._root}"
        if has_pressure:
            why = f"{text}: free space on it, or writes in volumes fail and new objects are rejected"
            self._events.warning(refer(NODES, node), "NodeHasDiskPressure", why)
        else:
            self._events.normal(refer(NODES, node), "NodeHasNoDiskPressure", text)

    async def beat(self) -> None:
        """Write the status every 5 minutes until cancelled."""
        while True:
            await self._clock.sleep(HEARTBEAT)
            try:
                node = await self.register()
                await self._patch_status({"conditions": self._conditions(node)})
            except (ApiError, UnavailableError) as failure:
                log.info("heartbeat not written node=%s error=%s", self._name, failure)

    def _conditions(self, node: Node | None) -> list[dict[str, Any]]:
        now = rfc3339(self._clock.time())
        old = node.status.conditions if node is not None else []
        rows = _PRESSED if self._has_pressure else _HEALTHY
        return [{**to_builtins(condition(old, *row, now=now)), "lastHeartbeatTime": now} for row in rows]

    def _status(self, node: Node | None) -> dict[str, Any]:
        return {
            "capacity": self._node.allocatable,
            "allocatable": self._node.allocatable,
            "conditions": self._conditions(node),
            "addresses": [
                {"type": "InternalIP", "address": self._node.address},
                {"type": "Hostname", "address": self._name},
            ],
            "nodeInfo": self._info(),
        }

    def _info(self) -> dict[str, str]:
        return {
            "machineID": _first_line("/etc/machine-id"),
            "systemUUID": _first_line("/etc/machine-id"),
            "bootID": _first_line("/proc/sys/kernel/random/boot_id"),
            "kernelVersion": platform.release(),
            "osImage": _os_image(),
            "containerRuntimeVersion": f"{self._runtime}://{__version__}",
            "kubeletVersion": KUBELET_VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": architecture(),
        }


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _os_image() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
