"""PV of a created volume, as external-provisioner's.

For a claim, or pre-provisioned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS
from tonnage.api.meta import to_builtins
from tonnage.api.quantity import from_bytes
from tonnage.api.storage import StorageClass
from tonnage.claims.create_request import ClaimRequest, secret_of
from tonnage.claims.node_scope import DriverInfo, NodeScope, is_ephemeral
from tonnage.csi.client.types import CreatedVolume
from tonnage.kube.client import refer

_SECRETS = {
    "controllerPublishSecretRef": "controller-publish-",
    "nodeStageSecretRef": "node-stage-",
    "nodePublishSecretRef": "node-publish-",
    "controllerExpandSecretRef": "controller-expand-",
    "nodeExpandSecretRef": "node-expand-",
}


def body(
    request: ClaimRequest,
    made: CreatedVolume,
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    driver: DriverInfo,
    scope: NodeScope,
) -> dict[str, Any]:
    """Return the PV to create: its node affinity, node label and claimRef."""
    policy = storage_class.reclaim_policy
    spec: dict[str, Any] = {
        **_of_class(made, storage_class, block=request.block),
        "capacity": {"storage": from_bytes(made.size or request.size)},
        "accessModes": claim.spec.access_modes,
        "claimRef": to_builtins(refer(CLAIMS, claim)),
        "csi": {
            **_source(made, driver, fstype=request.fstype, block=request.block),
            **_secrets(storage_class, claim, request.name),
        },
    }
    metadata: dict[str, Any] = {
        "name": request.name,
        "labels": {names.NODE_LABEL: scope.label},
        "annotations": {
            names.PROVISIONED_BY: driver.name,
            names.DELETION_SECRET_NAME: request.secret.name if request.secret else "",
            names.DELETION_SECRET_NAMESPACE: request.secret.namespace if request.secret else "",
        },
    }
    if not (is_ephemeral(claim) and policy == "Delete"):
        # Without it, a volume whose PV a person deletes before its claim is known to no object. An ephemeral claim's
        # volume has a record that allows deletion, so the sweep finds it and a write is saved.
        metadata["finalizers"] = [names.PROVISIONER_FINALIZER]
    return {"metadata": metadata, "spec": spec}


def ahead(
    name: str,
    made: CreatedVolume,
    storage_class: StorageClass,
    driver: DriverInfo,
    scope: NodeScope,
    *,
    fstype: str,
    block: bool,
) -> dict[str, Any]:
    """Return the pre-provisioned PV of a disk: as body(), without claimRef.

    ReadWriteOnce only: the API server rejects ReadWriteOncePod together with other modes.

    Raises: Invalid for secrets that are named after a claim.
    """
    metadata = {
        "name": name,
        "labels": {names.NODE_LABEL: scope.label, names.POOL_LABEL: names.label_value(driver.pool(storage_class))},
        "annotations": {names.PROVISIONED_BY: driver.name, names.DISK: made.context.get(names.DISK, "")},
        "finalizers": [names.PROVISIONER_FINALIZER],
    }
    spec = {
        **_of_class(made, storage_class, block=block),
        "capacity": {"storage": from_bytes(made.size)},
        "accessModes": [names.READ_WRITE_ONCE],
        "csi": {**_source(made, driver, fstype=fstype, block=block), **_secrets(storage_class, None, name)},
    }
    return {"metadata": metadata, "spec": spec}


def _of_class(made: CreatedVolume, storage_class: StorageClass, *, block: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "persistentVolumeReclaimPolicy": storage_class.reclaim_policy,
        "storageClassName": storage_class.metadata.name,
        "volumeMode": "Block" if block else "Filesystem",
    }
    if storage_class.mount_options and not block:
        spec["mountOptions"] = storage_class.mount_options
    if made.topologies:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [_term(t) for t in made.topologies]}}
    return spec


def _source(made: CreatedVolume, driver: DriverInfo, *, fstype: str, block: bool) -> dict[str, Any]:
    source: dict[str, Any] = {
        "driver": driver.name,
        "volumeHandle": made.id,
        "volumeAttributes": {**made.context, names.CSI_PROVISIONER_IDENTITY: driver.identity},
    }
    return source if block or not fstype else {**source, "fsType": fstype}


def check_secrets(storage_class: StorageClass) -> None:
    """Raise InvalidError if the class's secrets are named after a claim."""
    _secrets(storage_class, None, "any")


def _secrets(storage_class: StorageClass, claim: PersistentVolumeClaim | None, volume: str) -> Mapping[str, Any]:
    found = {}
    for key, role in _SECRETS.items():
        if ref := secret_of(storage_class.parameters, role, claim, volume):
            found[key] = {"name": ref.name, "namespace": ref.namespace}
    return found


def _term(topology: Any) -> dict[str, Any]:
    return {
        "matchExpressions": [{"key": k, "operator": "In", "values": [topology[k]]} for k in sorted(topology)],
    }
