"""Initial objects of a box: drivers, classes, namespace, Service `kubernetes`. Existing objects are not changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiAlreadyExistsError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.group_snapshot import DEFAULT_GROUP_CLASS
from tonnage.kubernetes.api.kinds import (
    CSI_DRIVERS,
    GROUP_CLASSES,
    NAMESPACES,
    SERVICES,
    SNAPSHOT_CLASSES,
    STORAGE_CLASSES,
    Kind,
)
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.snapshot import DEFAULT_CLASS
from tonnage.kubernetes.client.client import Client
from tonnage.node.inline import sources
from tonnage.node.inline.config import parse_inlines

_DRIVER = {
    "attachRequired": False,
    "podInfoOnMount": True,
    "storageCapacity": True,
    "fsGroupPolicy": "File",
    "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    "requiresRepublish": False,
}
_API_SERVER = {
    "metadata": {"namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"}},
    "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
}
"""Programs look for it; as with all Services nothing answers at its address."""


async def ensure_all(client: Client, *, pools: Sequence[str], compat: Sequence[str]) -> None:
    """Create the box's objects. pools: their names, the default one first. Idempotent."""
    await _ensure(client, SERVICES, "kubernetes", _API_SERVER)
    await ensure_drivers(client, [names.DRIVER, *(names.COMPAT_DRIVERS[word] for word in compat)])
    default = {names.DEFAULT_CLASS: "true"}
    await _ensure(client, STORAGE_CLASSES, names.SCRATCH_CLASS, storage_class(names.DRIVER, annotations=default))
    await _ensure(client, STORAGE_CLASSES, names.IMMEDIATE_CLASS, storage_class(names.DRIVER, mode=names.IMMEDIATE))
    for pool in pools:
        body = storage_class(names.DRIVER, parameters={"pool": pool})
        await _ensure(client, STORAGE_CLASSES, class_of(pool), body)
    await _ensure(client, SNAPSHOT_CLASSES, names.SNAPSHOT_CLASS, snapshot_class(names.DRIVER))
    await _ensure(client, GROUP_CLASSES, names.SNAPSHOT_CLASS, group_class(names.DRIVER))
    await _let_grow(client, [names.SCRATCH_CLASS, names.IMMEDIATE_CLASS, *map(class_of, pools)])
    if "pmem-csi" in compat:
        await _pmem_csi(client)


async def ensure_inline(client: Client, texts: Sequence[str], clock: Clock) -> None:
    """Create the CSIDriver objects of inline drivers. texts: as after --inline. Idempotent. Raises: InvalidError."""
    for body in sources.csi_drivers(parse_inlines(texts), clock):
        await _ensure(client, CSI_DRIVERS, body["metadata"]["name"], body)


async def _let_grow(client: Client, classes: Sequence[str]) -> None:
    """Allow expansion in classes that an earlier release made, unless a person has decided it."""
    for name in classes:
        found = await client.get(STORAGE_CLASSES, name)
        if found.allow_volume_expansion is None and found.provisioner == names.DRIVER:
            await client.patch(STORAGE_CLASSES, name, {"allowVolumeExpansion": True}, uid=found.metadata.uid)


def class_of(pool: str) -> str:
    """Name of the class that asks for a pool of the box."""
    return f"tonnage-{pool.lower().replace('_', '-')}"


async def ensure_drivers(client: Client, drivers: Sequence[str]) -> None:
    """Make the namespace of our objects, and CSIDrivers of these names. Idempotent."""
    await _ensure(client, NAMESPACES, names.SYSTEM_NAMESPACE, {})
    for driver in drivers:
        await _ensure(client, CSI_DRIVERS, driver, {"spec": _DRIVER})


async def _pmem_csi(client: Client) -> None:
    """The classes that PMEM-CSI's users know."""
    late = names.WAIT_FOR_FIRST_CONSUMER
    classes = {
        "pmem-csi-sc": ({}, names.IMMEDIATE),
        "pmem-csi-sc-ext4": ({names.CSI_FSTYPE: "ext4", "eraseafter": "true"}, names.IMMEDIATE),
        "pmem-csi-sc-xfs": ({names.CSI_FSTYPE: "xfs", "eraseafter": "true"}, names.IMMEDIATE),
        "pmem-csi-sc-late-binding": ({}, late),
    }
    for name, (parameters, mode) in classes.items():
        body = storage_class(names.PMEM_CSI, parameters=parameters, mode=mode, grows=False)
        await _ensure(client, STORAGE_CLASSES, name, _applied(name, body))


def _applied(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """A StorageClass as if kubectl had applied it: to apply its manifest is no change, and no reason to warn."""
    fields = {key: value for key, value in body.items() if value}
    manifest = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"} | fields
    manifest["metadata"] = {"annotations": {}, "name": name}
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return body | {"metadata": {"annotations": {names.LAST_APPLIED: f"{text}\n"}}}


def storage_class(
    provisioner: str,
    *,
    parameters: Mapping[str, str] | None = None,
    mode: str = names.WAIT_FOR_FIRST_CONSUMER,
    annotations: Mapping[str, str] | None = None,
    grows: bool = True,
) -> dict[str, Any]:
    """A StorageClass with policy Delete, without its name. grows: claims of it may be expanded."""
    metadata = {"annotations": dict(annotations)} if annotations else {}
    return {
        "metadata": metadata,
        "provisioner": provisioner,
        "parameters": dict(parameters or {}),
        "reclaimPolicy": "Delete",
        "volumeBindingMode": mode,
        **({"allowVolumeExpansion": True} if grows else {}),
    }


def snapshot_class(driver: str) -> dict[str, Any]:
    """The default VolumeSnapshotClass of a driver, without its name. Backup tools look for the label."""
    metadata = {"annotations": {DEFAULT_CLASS: "true"}, "labels": {names.VELERO_CLASS: "true"}}
    return {"metadata": metadata, "driver": driver, "deletionPolicy": "Delete"}


def group_class(driver: str) -> dict[str, Any]:
    """The default VolumeGroupSnapshotClass of a driver, without its name."""
    return {"metadata": {"annotations": {DEFAULT_GROUP_CLASS: "true"}}, "driver": driver, "deletionPolicy": "Delete"}


async def _ensure(client: Client, kind: Kind[KubeObject] | Kind[Any], name: str, body: dict[str, Any]) -> None:
    """Create the object; an existing one is not changed."""
    metadata = {**body.get("metadata", {}), "name": name}
    with suppress(ApiAlreadyExistsError):
        await client.create(kind, {**body, "metadata": metadata}, metadata.get("namespace", ""))
