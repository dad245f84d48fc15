"""Objects for tests, created with the fields that a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import Client

Json = Mapping[str, Any]
MakeClass = Callable[..., Awaitable[StorageClass]]
MakeClaim = Callable[..., Awaitable[PersistentVolumeClaim]]
MakeVolume = Callable[..., Awaitable[PersistentVolume]]
MakePod = Callable[..., Awaitable[Pod]]
"""Types of the methods of Objects, for fixtures."""


class Objects:
    """Creates objects through a client, in the namespace `default`. `spec` is added to what is filled in."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def storage_class(
        self, name: str, *, mode: str = names.WAIT_FOR_FIRST_CONSUMER, default: bool = False, **more: Any
    ) -> StorageClass:
        """A class of tonnage's driver. mode: volumeBindingMode. more: fields of the class."""
        annotations = {names.DEFAULT_CLASS: "true"} if default else {}
        body = {"provisioner": names.DRIVER, **more, "volumeBindingMode": mode}
        return await self._client.create(
            kinds.STORAGE_CLASSES, {"metadata": {"name": name, "annotations": annotations}, **body}
        )

    async def claim(
        self,
        name: str,
        size: str = "1Gi",
        *,
        annotations: Mapping[str, str] | None = None,
        owners: Sequence[Json] = (),
        **spec: Any,
    ) -> PersistentVolumeClaim:
        """A ReadWriteOnce claim of that size (a quantity)."""
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}
        meta = {"name": name, "annotations": dict(annotations or {}), "ownerReferences": list(owners)}
        return await self._client.create(kinds.CLAIMS, {"metadata": meta, "spec": spec}, "default")

    async def volume(
        self,
        name: str,
        size: str = "1Gi",
        *,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> PersistentVolume:
        """A ReadWriteOnce PersistentVolume of tonnage's driver, with its name as the volume handle."""
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "csi": {"driver": names.DRIVER, "volumeHandle": name},
            **spec,
        }
        meta = {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
        return await self._client.create(kinds.VOLUMES, {"metadata": meta, "spec": spec})

    async def pod(
        self, name: str, *, ephemeral: Mapping[str, Json] | None = None, claims: Sequence[str] = (), **spec: Any
    ) -> Pod:
        """A pod of one container. ephemeral: name of a volume -> what its claim's spec has. claims: claims by name."""
        volumes: list[Json] = []
        for volume, extra in (ephemeral or {}).items():
            claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **extra}
            volumes.append({"name": volume, "ephemeral": {"volumeClaimTemplate": {"spec": claim}}})
        for number, claim_name in enumerate(claims):
            volumes.append({"name": f"c{number}", "persistentVolumeClaim": {"claimName": claim_name}})
        body = {"containers": [{"name": "main", "image": "none"}], "volumes": volumes, **spec}
        return await self._client.create(kinds.PODS, {"metadata": {"name": name}, "spec": body}, "default")

    async def scratch_pod(self, name: str, *sizes: str, storage_class: str = "late") -> Pod:
        """A pod with a generic ephemeral volume of each size (v0, v1 ...), and the claims that its controller makes."""
        spec = {"storageClassName": storage_class}
        wanted = {f"v{n}": {**spec, "resources": {"requests": {"storage": size}}} for n, size in enumerate(sizes)}
        pod = await self.pod(name, ephemeral=wanted)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid, "controller": True}
        for n, size in enumerate(sizes):
            await self.claim(f"{name}-v{n}", size, owners=[owner], storageClassName=storage_class)
        return pod
