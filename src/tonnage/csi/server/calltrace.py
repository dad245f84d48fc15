"""What a span says of a CSI call: the names of OpenTelemetry's conventions for RPC, and whose volume it is."""

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
    """A span's name, of the path of a call: csi.v1.Controller/CreateVolume."""
    return (path.decode() if isinstance(path, bytes) else path).strip("/")


def about(request: object) -> Mapping[str, str | int]:
    """Attributes of a call: which volume, for whom. Nothing that could be a secret is among them."""
    found: dict[str, str | int] = {"rpc.system": "grpc"}
    for field in _ABOUT:
        if value := getattr(request, field, ""):
            found[f"csi.{field}"] = str(value)
    for field in _CONTEXTS:
        given = getattr(request, field, {})
        found |= {word: str(given[key]) for key, word in _KEPT.items() if key in given}
    return found
