"""Attributes of a span for a CSI call, by OpenTelemetry's conventions for RPC, with the volume."""

from __future__ import annotations

from collections.abc import Mapping

from tonnage.api import names

_ABOUT = ("volume_id", "snapshot_id", "name", "source_volume_id")
_CONTEXTS = ("parameters", "volume_context")
_KEPT = {
    names.CSI_PVC_NAME: "k8s.persistentvolumeclaim.name",
    names.CSI_PVC_NAMESPACE: "k8s.namespace.name",
    names.CSI_POD_UID: "k8s.pod.uid",
}


def name(path: bytes | str) -> str:
    """The name of a span for the path of a call: csi.v1.Controller/CreateVolume."""
    return (path.decode() if isinstance(path, bytes) else path).strip("/")


def about(request: object) -> Mapping[str, str | int]:
    """Attributes of a call: its volume and owner, without any secret."""
    found: dict[str, str | int] = {"rpc.system": "grpc"}
    for field in _ABOUT:
        if value := getattr(request, field, ""):
            found[f"csi.{field}"] = str(value)
    for field in _CONTEXTS:
        given = getattr(request, field, {})
        found |= {word: str(given[key]) for key, word in _KEPT.items() if key in given}
    return found
