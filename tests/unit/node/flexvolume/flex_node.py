"""A node that serves FlexVolumes, called as a kubelet calls it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.api.kinds import VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.node.flexvolume.mounts import FlexMounts
from tonnage.node.flexvolume.protocol import parse_request
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30


@dataclass
class FlexNode:
    """A node with a pool that mounts nothing, and what the kubelet does around a call."""

    kubelet: Path
    client: Client
    pool: FakePool
    driver: CsiClient
    mounts: FlexMounts
    changes: list[int] = field(default_factory=list)

    def target(self, pod: str, volume: str, driver: str = "tonnage.dev/local") -> Path:
        return self.kubelet / "pods" / pod / "volumes" / driver.replace("/", "~") / volume

    async def mount(self, pod: str, volume: str, *, namespace: str = "default", **options: str) -> None:
        target = self.target(pod, volume)
        target.mkdir(parents=True, exist_ok=True)
        given = {
            "kubernetes.io/fsType": "",
            "kubernetes.io/readwrite": "rw",
            "kubernetes.io/pvOrVolumeName": volume,
            "kubernetes.io/pod.name": pod,
            "kubernetes.io/pod.namespace": namespace,
            "kubernetes.io/pod.uid": pod,
            **options,
        }
        await self._call("mount", str(target), json.dumps(given))

    async def unmount(self, pod: str, volume: str) -> None:
        await self._call("unmount", str(self.target(pod, volume)))

    async def _call(self, *parts: str) -> None:
        await self.mounts.serve(parse_request("\0".join(("/x", *parts, "")).encode(), self.kubelet))

    async def volumes(self) -> list[str]:
        return sorted(volume.name for volume in await self.pool.list())

    async def volume(
        self,
        name: str,
        *,
        namespace: str = "default",
        driver: str = "tonnage.dev/local",
        handle: str = "",
        annotations: Mapping[str, str] | None = None,
        **more: Any,
    ) -> str:
        """A PersistentVolume of a claim; its uid. handle: of a volume that was made for the claim."""
        spec: dict[str, Any] = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "flexVolume": {"driver": driver, "options": {"volumeHandle": handle} if handle else {}},
            "claimRef": {"namespace": namespace, "name": "c", "uid": "u"},
            **more,
        }
        made = await self.client.create(
            VOLUMES, {"metadata": {"name": name, "annotations": dict(annotations or {})}, "spec": spec}
        )
        return made.metadata.uid

    def records(self) -> list[Path]:
        return sorted((self.kubelet / "state" / "flexvolume").glob("*"))
