"""Objects of the stories: classes, claims and pods as a user writes them."""

from __future__ import annotations

import json
from typing import Any

from tests.clusters import Cluster

from tonnage.kubernetes.api import names

Json = dict[str, Any]
FAST = "stories-fast"
"""Class of the second pool, xfs."""
INLINE = {"driver": names.DRIVER, "volumeAttributes": {"size": "16Mi"}}


def storage_class(name: str, **parameters: str) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": names.DRIVER,
        "allowVolumeExpansion": True,
        "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
        "parameters": parameters,
    }


def claim_spec(size: str, storage_class: str = names.SCRATCH_CLASS, **spec: Any) -> Json:
    asked = {"storageClassName": storage_class, "resources": {"requests": {"storage": size}}}
    return {"accessModes": ["ReadWriteOnce"], **asked, **spec}


def claim(name: str, size: str, storage_class: str = names.SCRATCH_CLASS, **spec: Any) -> Json:
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    return {**kind, "spec": claim_spec(size, storage_class, **spec)}


def ephemeral(name: str, size: str, storage_class: str = names.SCRATCH_CLASS, **spec: Any) -> Json:
    """A generic ephemeral volume of a pod."""
    return {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(size, storage_class, **spec)}}}


def of_claim(name: str, **source: Any) -> Json:
    """A volume of a pod that is the claim of its name."""
    return {"name": name, "persistentVolumeClaim": {"claimName": name, **source}}


def pod_spec(*volumes: Json, command: str = "sleep 100000", **container: Any) -> Json:
    """A pod whose container has each volume at /NAME."""
    mounts = [{"name": v["name"], "mountPath": f"/{v['name']}"} for v in volumes]
    main = {"name": "main", "image": "busybox", "command": ["sh", "-c", command], "volumeMounts": mounts, **container}
    return {"terminationGracePeriodSeconds": 0, "containers": [main], "volumes": list(volumes)}


def pod(name: str, *volumes: Json, command: str = "sleep 100000", **container: Any) -> Json:
    spec = pod_spec(*volumes, command=command, **container)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def apply(box: Cluster, *objects: Json) -> None:
    box.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def run(box: Cluster, *objects: Json) -> None:
    """Apply, and wait until the pods are ready."""
    apply(box, *objects)
    if ready := [f"pod/{one['metadata']['name']}" for one in objects if one["kind"] == "Pod"]:
        box.kubectl("wait", "--for=condition=Ready", *ready, "--timeout=120s")


def sh(box: Cluster, pod: str, command: str, *options: str) -> str:
    return box.kubectl("exec", pod, *options, "--", "sh", "-c", command).strip()


def size_of(box: Cluster, pod: str, path: str) -> int:
    """Bytes of the file system at a path in a pod."""
    blocks, size = sh(box, pod, f"stat -f -c '%b %S' {path}").split()
    return int(blocks) * int(size)


def events(box: Cluster, about: str) -> dict[str, str]:
    """Reason -> message of an object's Events."""
    found = box.get("events")["items"]
    return {e["reason"]: e["message"] for e in found if e["involvedObject"]["name"] == about}
