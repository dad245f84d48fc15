"""Object bodies of a trace, as a client would create them (--full)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage_box.simulate.workload.workload import SimulatedNodes, StreamSpec, VolumeSpec

NAMESPACE = "simulated"
SET_LABEL = "simulated"
"""Label of pods that a controller makes: the name of the object that the trace has."""
Sizes = Sequence[int]


def node(name: str, spec: SimulatedNodes) -> dict[str, Any]:
    """A node that is ready, with what it can give to pods."""
    amounts = {"cpu": spec.cpu, "memory": spec.memory, "pods": str(spec.pods)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "metadata": {"name": name, "labels": {names.TOPOLOGY_NODE: name, names.HOSTNAME_LABEL: name}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }


def csi_node(node: Node) -> dict[str, Any]:
    """CSINode of that node, with one driver."""
    meta = node.metadata
    owner = {"apiVersion": "v1", "kind": "Node", "name": meta.name, "uid": meta.uid}
    entry = {"name": names.DRIVER, "nodeID": meta.name, "topologyKeys": [names.TOPOLOGY_NODE]}
    return {"metadata": {"name": meta.name, "ownerReferences": [owner]}, "spec": {"drivers": [entry]}}


def pod(name: str, stream: StreamSpec, sizes: Sizes, claims: Sequence[str] = ()) -> dict[str, Any]:
    """A pod; its volumes are ephemeral, or the claims of these names."""
    return {"metadata": {"name": name}, "spec": pod_spec(stream, _volumes(stream, sizes, claims))}


def claim(name: str, volume: VolumeSpec, size: int) -> dict[str, Any]:
    """A claim that outlives its pod."""
    return {"metadata": {"name": name}, "spec": claim_spec(volume.storage_class, size)}


def deployment(name: str, stream: StreamSpec, sizes: Sizes) -> dict[str, Any]:
    """A Deployment of as many pods as the burst has."""
    spec = {"replicas": stream.burst, **_selected(name, stream, _volumes(stream, sizes, ()))}
    return {"metadata": {"name": name}, "spec": spec}


def stateful_set(name: str, stream: StreamSpec, sizes: Sizes) -> dict[str, Any]:
    """A StatefulSet with parallel pods, whose claims are deleted with it."""
    templates = [
        {**claim(volume_name(index), volume, size)}
        for index, (volume, size) in enumerate(zip(stream.volumes, sizes, strict=True))
    ]
    spec = {
        "replicas": stream.burst,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
        "volumeClaimTemplates": templates,
        **_selected(name, stream, []),
    }
    return {"metadata": {"name": name}, "spec": spec}


def job(name: str, stream: StreamSpec, sizes: Sizes) -> dict[str, Any]:
    """A Job whose pods all run side by side."""
    template = {
        "metadata": {"labels": {SET_LABEL: name}},
        "spec": {**pod_spec(stream, _volumes(stream, sizes, ())), "restartPolicy": "Never"},
    }
    spec = {"completions": stream.burst, "parallelism": stream.burst, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def volume_name(index: int) -> str:
    """A pod's name for its volume."""
    return f"v{index}"


def _selected(name: str, stream: StreamSpec, volumes: list[dict[str, Any]]) -> dict[str, Any]:
    labels = {SET_LABEL: name}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(stream, volumes)}
    return {"selector": {"matchLabels": labels}, "template": template}


def pod_spec(stream: StreamSpec, volumes: list[dict[str, Any]]) -> dict[str, Any]:
    """Specification of a pod of the stream."""
    mounts = [{"name": volume_name(index), "mountPath": f"/v{index}"} for index in range(len(stream.volumes))]
    container = {
        "name": "main",
        "image": "simulated",
        "resources": {"requests": {"cpu": stream.cpu, "memory": stream.memory}},
        "volumeMounts": mounts,
    }
    return {"containers": [container], "volumes": volumes}


def _volumes(stream: StreamSpec, sizes: Sizes, claims: Sequence[str]) -> list[dict[str, Any]]:
    sources: list[Mapping[str, Any]]
    if claims:
        sources = [{"persistentVolumeClaim": {"claimName": name}} for name in claims]
    else:
        sources = [
            {"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(volume.storage_class, size)}}}
            for volume, size in zip(stream.volumes, sizes, strict=True)
        ]
    return [{"name": volume_name(index), **source} for index, source in enumerate(sources)]


def claim_spec(storage_class: str, size: int) -> dict[str, Any]:
    """Specification of a claim."""
    return {
        "accessModes": [names.READ_WRITE_ONCE],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": str(size)}},
    }
