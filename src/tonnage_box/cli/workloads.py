"""Pods of the demo."""

from __future__ import annotations

from typing import Any

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import SNAPSHOTS

SLEEP = "sleep 100000"


def pod_with(name: str, volumes: dict[str, str], command: str = SLEEP, *, restart: str = "Always") -> dict[str, Any]:
    """A pod with one ephemeral volume for each name -> size, mounted at /<name>."""
    sources = [
        {"name": volume, "ephemeral": {"volumeClaimTemplate": _template(size)}} for volume, size in volumes.items()
    ]
    return _pod(name, sources, command, restart)


def inline(name: str, size: str, command: str = SLEEP) -> dict[str, Any]:
    """A pod with one CSI inline volume at /data."""
    source = {"name": "data", "csi": {"driver": names.DRIVER, "volumeAttributes": {"size": size}}}
    return _pod(name, [source], command, "Always")


def pod_of_claim(name: str, claim: str, command: str = SLEEP) -> dict[str, Any]:
    """A pod with a claim at /data."""
    return _pod(name, [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}], command, "Always")


def claim_of(name: str, size: str, storage_class: str, *, snapshot: str = "") -> dict[str, Any]:
    """A claim, empty or restored from a VolumeSnapshot."""
    spec: dict[str, Any] = {
        "accessModes": [names.READ_WRITE_ONCE],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }
    if snapshot:
        spec["dataSource"] = {"apiGroup": SNAPSHOTS.group, "kind": SNAPSHOTS.kind, "name": snapshot}
    return {"metadata": {"name": name}, "spec": spec}


def _template(size: str) -> dict[str, Any]:
    return {
        "spec": {
            "accessModes": [names.READ_WRITE_ONCE],
            "storageClassName": names.SCRATCH_CLASS,
            "resources": {"requests": {"storage": size}},
        }
    }


def _pod(name: str, volumes: list[dict[str, Any]], command: str, restart: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", command],
        "volumeMounts": [{"name": v["name"], "mountPath": f"/{v['name']}"} for v in volumes],
    }
    spec = {"containers": [container], "volumes": volumes, "restartPolicy": restart, "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": name}, "spec": spec}
