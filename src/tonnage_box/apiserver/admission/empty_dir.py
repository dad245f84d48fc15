"""emptyDirs with a limit become generic ephemeral volumes, where a namespace or pod asks for it.

Under Kubernetes the MutatingAdmissionPolicy tonnage-empty-dir does the same, by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.storage.store import Obj

_SPARED = frozenset({"kube-system", names.SYSTEM_NAMESPACE})


def of_pod(context: AdmissionContext, pod: Obj) -> None:
    """Rewrite the volumes of a new pod, if its own label says so, or else its namespace's."""
    if context.namespace in _SPARED or not any(_limit(volume) for volume in pod["spec"].get("volumes") or ()):
        return
    label = _label(pod)
    if label is None:
        label = _label(context.get(kinds.NAMESPACES, context.namespace) or {})
    if label == names.LIMITED:
        rewrite(pod["spec"])


def rewrite(spec: dict[str, Any]) -> None:
    """Replace each emptyDir of a pod's spec that has a limit on disk. Idempotent.

    A pod that was bound by hand stays as it is: its node may have no driver of ours.
    """
    if spec.get("nodeName"):
        return
    for volume in spec.get("volumes") or ():
        if limit := _limit(volume):
            del volume["emptyDir"]
            claim = {"accessModes": [names.READ_WRITE_ONCE], "resources": {"requests": {"storage": limit}}}
            volume["ephemeral"] = {"volumeClaimTemplate": {"spec": claim}}


def _limit(volume: Mapping[str, Any]) -> str:
    """Return the limit of an emptyDir on disk, "" for another volume and where there is none."""
    source = volume.get("emptyDir") or {}
    limit = source.get("sizeLimit")
    if limit is None or source.get("medium") or Quantity.parse(str(limit)).nanos <= 0:
        return ""
    return str(limit)


def _label(obj: Obj) -> str | None:
    return (obj.get("metadata", {}).get("labels") or {}).get(names.EMPTY_DIR)
