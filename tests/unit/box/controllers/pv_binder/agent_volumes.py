"""The PersistentVolumes of agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS
from tonnage.kubernetes.client.client import Client

Make = Callable[..., Awaitable[Any]]
MARKS = {names.STORAGE_PROVISIONER: names.DRIVER, names.BETA_STORAGE_PROVISIONER: names.DRIVER}


async def claim_of(kube: Client, name: str) -> Any:
    return await kube.get(CLAIMS, name, "default")


def ref(claim: Any) -> dict[str, str]:
    meta = claim.metadata
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
    }


async def made_by_agent(make_volume: Make, claim: Any, **more: Any) -> Any:
    return await make_volume(
        f"pvc-{claim.metadata.uid}",
        annotations={names.PROVISIONED_BY: names.DRIVER},
        labels={names.NODE_LABEL: "n1"},
        claimRef=ref(claim),
        storageClassName=claim.spec.storage_class_name or "",
        persistentVolumeReclaimPolicy="Delete",
        **more,
    )
