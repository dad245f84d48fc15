"""Columns of `kubectl get` for core/v1 but services (pkg/printers/internalversion)."""

from __future__ import annotations

from functools import partial

from tonnage.kubernetes.api import names
from tonnage_box.apiserver.kinds.core.pod_columns import pod_ready, pod_restarts, pod_status, readiness_gates
from tonnage_box.apiserver.printers.cells import CONTAINERS, shown_labels
from tonnage_box.apiserver.printers.table import AGE, NAME, Column, Obj, age, at, dig, of

_SHORT_MODES = {
    names.READ_WRITE_ONCE: "RWO",
    names.READ_ONLY_MANY: "ROX",
    names.READ_WRITE_MANY: "RWX",
    names.READ_WRITE_ONCE_POD: "RWOP",
}
_ROLE_PREFIX = "node-role.kubernetes.io/"
_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"


def _access_modes(modes: list[str] | None) -> str:
    return ",".join(short for mode, short in _SHORT_MODES.items() if mode in (modes or ()))


def _phase(obj: Obj) -> str:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(dig(obj, "status", "phase") or "")


def _class(obj: Obj) -> str:
    beta = dig(obj, "metadata", "annotations", _BETA_CLASS)
    return str(beta if beta is not None else dig(obj, "spec", "storageClassName") or "")


POD = (
    NAME,
    of("Ready", pod_ready, text="Containers that are ready, of how many."),
    of("Status", pod_status, text="What the pod is doing, in one word."),
    Column("Restarts", pod_restarts, text="Restarts of its containers, and when the last was."),
    AGE,
    of("IP", lambda o: (dig(o, "status", "podIPs") or [{}])[0].get("ip") or "<none>", 1),
    at("Node", "spec", "nodeName", empty="<none>", priority=1),
    at("Nominated Node", "status", "nominatedNodeName", empty="<none>", priority=1),
    of("Readiness Gates", readiness_gates, 1),
)


def _node_status(obj: Obj) -> str:
    ready = [c.get("status") for c in dig(obj, "status", "conditions") or () if c.get("type") == "Ready"]
    words = ["Unknown" if not ready else "Ready" if ready[-1] == "True" else "NotReady"]
    return ",".join(words + (["SchedulingDisabled"] if dig(obj, "spec", "unschedulable") else []))


def _roles(obj: Obj) -> str:
    labels = obj["metadata"].get("labels") or {}
    roles = {k[len(_ROLE_PREFIX) :] for k in labels if k.startswith(_ROLE_PREFIX)} | {labels.get("kubernetes.io/role")}
    return ",".join(sorted(r for r in roles if r)) or "<none>"


def _address(word: str, obj: Obj) -> str:
    found = (a.get("address", "<none>") for a in dig(obj, "status", "addresses") or () if a.get("type") == word)
    return next(found, "<none>")


NODE = (
    NAME,
    of("Status", _node_status, text="Whether the node takes pods."),
    of("Roles", _roles, text="Its roles, from its labels."),
    AGE,
    at("Version", "status", "nodeInfo", "kubeletVersion", text="The kubelet's version."),
    of("Internal-IP", partial(_address, "InternalIP"), 1),
    of("External-IP", partial(_address, "ExternalIP"), 1),
    at("OS-Image", "status", "nodeInfo", "osImage", empty="<unknown>", priority=1),
    at("Kernel-Version", "status", "nodeInfo", "kernelVersion", empty="<unknown>", priority=1),
    at("Container-Runtime", "status", "nodeInfo", "containerRuntimeVersion", empty="<unknown>", priority=1),
)
_VOLUME_MODE = at("VolumeMode", "spec", "volumeMode", empty="<unset>", priority=1)
_ATTRIBUTES = at("VolumeAttributesClass", "spec", "volumeAttributesClassName", empty="<unset>")


def _claim_capacity(obj: Obj) -> str:
    if not dig(obj, "spec", "volumeName"):
        return ""
    return str(dig(obj, "status", "capacity", "storage") or "0")


def _claim_modes(obj: Obj) -> str:
    return _access_modes(dig(obj, "status", "accessModes")) if dig(obj, "spec", "volumeName") else ""


CLAIM = (
    NAME,
    of("Status", _phase, text="Pending, Bound, Lost or Terminating."),
    at("Volume", "spec", "volumeName", text="The PersistentVolume it is bound to."),
    of("Capacity", _claim_capacity, text="Size of that volume."),
    of("Access Modes", _claim_modes, text="How that volume may be mounted."),
    of("StorageClass", _class, text="The class it asks for."),
    _ATTRIBUTES,
    AGE,
    _VOLUME_MODE,
)


def _claim_of(obj: Obj) -> str:
    ref = dig(obj, "spec", "claimRef")
    return f"{ref.get('namespace', '')}/{ref.get('name', '')}" if ref else ""


VOLUME = (
    NAME,
    at("Capacity", "spec", "capacity", "storage", empty="0", text="Its size."),
    of("Access Modes", lambda o: _access_modes(dig(o, "spec", "accessModes")), text="How it may be mounted."),
    at("Reclaim Policy", "spec", "persistentVolumeReclaimPolicy", text="What happens when its claim goes."),
    of("Status", _phase, text="Available, Bound, Released, Failed or Terminating."),
    of("Claim", _claim_of, text="The claim it is bound to."),
    of("StorageClass", _class, text="The class it belongs to."),
    _ATTRIBUTES,
    at("Reason", "status", "reason", text="Why it failed."),
    AGE,
    _VOLUME_MODE,
)
NAMESPACE = (NAME, at("Status", "status", "phase"), AGE)
CONFIG_MAP = (NAME, of("Data", lambda o: len(o.get("data") or ()) + len(o.get("binaryData") or ())), AGE)
SECRET = (NAME, at("Type", "type"), of("Data", lambda o: len(o.get("data") or ())), AGE)
SERVICE_ACCOUNT = (NAME, of("Secrets", lambda o: len(o.get("secrets") or ())), AGE)


def _quota(obj: Obj, *, limits: bool) -> str:
    hard, used = dig(obj, "status", "hard") or {}, dig(obj, "status", "used") or {}
    wanted = sorted(r for r in hard if r.startswith("limits.") == limits)
    return ", ".join(f"{r}: {used.get(r, '0')}/{hard[r]}" for r in wanted)


RESOURCE_QUOTA = (NAME, of("Request", partial(_quota, limits=False)), of("Limit", partial(_quota, limits=True)), AGE)


def _first_seen(obj: Obj) -> str | None:
    return obj.get("firstTimestamp") or obj.get("eventTime")


def _last_seen(obj: Obj) -> str | None:
    return dig(obj, "series", "lastObservedTime") or obj.get("lastTimestamp") or _first_seen(obj)


def _event_object(obj: Obj) -> str:
    ref = obj.get("involvedObject") or {}
    kind = str(ref.get("kind", "")).lower()
    return f"{kind}/{ref['name']}" if ref.get("name") else kind


def _event_source(obj: Obj) -> str:
    component = dig(obj, "source", "component") or obj.get("reportingComponent") or ""
    host = dig(obj, "source", "host") or obj.get("reportingInstance")
    return f"{component}, {host}" if host else str(component)


EVENT = (
    Column("Last Seen", lambda o, now: age(_last_seen(o), now), text="When it happened last."),
    at("Type", "type"),
    at("Reason", "reason"),
    of("Object", _event_object),
    at("Subobject", "involvedObject", "fieldPath", priority=1),
    of("Source", _event_source, 1),
    of("Message", lambda o: str(o.get("message", "")).strip()),
    Column("First Seen", lambda o, now: age(_first_seen(o), now), priority=1),
    of("Count", lambda o: dig(o, "series", "count") or o.get("count") or 1, 1),
    Column("Name", NAME.cell, priority=1, format="name"),
)
REPLICATION_CONTROLLER = (
    NAME,
    at("Desired", "spec", "replicas", empty=0, kind="integer"),
    at("Current", "status", "replicas", empty=0, kind="integer"),
    at("Ready", "status", "readyReplicas", empty=0, kind="integer"),
    AGE,
    *CONTAINERS,
    of("Selector", lambda o: shown_labels(dig(o, "spec", "selector")), 1),
)
POD_TEMPLATE = (
    NAME,
    of("Containers", lambda o: _each_container(o, "name")),
    of("Images", lambda o: _each_container(o, "image")),
    of("Pod Labels", lambda o: shown_labels(dig(o, "template", "metadata", "labels"))),
)


def _each_container(obj: Obj, word: str) -> str:
    return ",".join(c.get(word, "") for c in dig(obj, "template", "spec", "containers") or ())
