"""Checks of StorageClasses and of the pools that they name."""

from __future__ import annotations

from collections.abc import Iterator

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.matching import is_default
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.node.capacity.poller import fault_of
from tonnage.storage.pools.base.parameters import POOL
from tonnage.tools.ops.cluster_snapshot import View
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn
from tonnage.tools.ops.doctor.installation import APPLY, leader

_CHECK = "classes"
_AGAIN = "a class cannot be changed: delete it and create a correct one; waiting pods continue by themselves"


def check(view: View) -> Iterator[Finding]:
    """Each class of ours; the configuration of the pools."""
    if "storageclasses" in view.rejected:
        return
    for name, file in sorted(view.files.items()):
        if isinstance(file, str):
            todo = f"kubectl -n {view.namespace} edit configmap {name}"
            yield fail(_CHECK, f"configmap/{name}", f"node.yaml is not a node's file: {file}", todo)
    if not view.ours:
        text = f"no class has provisioner {names.DRIVER}: no claim can use tonnage"
        yield warn(_CHECK, "storageclasses", text, APPLY)
    for storage_class in view.ours:
        yield from _class(view, storage_class)
    defaults = [c.metadata.name for c in view.classes if is_default(c)]
    if len(defaults) > 1 and any(c.metadata.name in defaults for c in view.ours):
        text = "several classes are marked as default; the newest is used"
        yield warn(_CHECK, few(defaults), text, f"set {names.DEFAULT_CLASS} on one of them only")


def _class(view: View, storage_class: StorageClass) -> Iterator[Finding]:
    name = storage_class.metadata.name
    if fault := fault_of(storage_class) or _unknown_pool(view, storage_class):
        yield fail(_CHECK, name, fault, _AGAIN)
        return
    objects = [c for c in view.capacities if c.storage_class_name == name and c.node_topology is not None]
    reasons: dict[str, list[str]] = {}
    for found in objects:
        reason = found.metadata.annotations.get(names.REASON, "")
        if names.is_fault(reason):
            reasons.setdefault(reason, []).append(found.metadata.labels.get(names.NODE_LABEL, "?"))
    rejecting = sum(map(len, reasons.values()))
    listed = "; ".join(f"{reason} ({few(sorted(nodes))})" for reason, nodes in sorted(reasons.items()))
    if objects and rejecting == len(objects):
        yield fail(_CHECK, name, f"no node can serve it: {listed}", _AGAIN)
    elif reasons:
        text = f"{rejecting} of {len(objects)} nodes cannot serve it: {listed}"
        yield warn(_CHECK, name, text, "no action if that is intended")
    elif storage_class.volume_binding_mode != names.WAIT_FOR_FIRST_CONSUMER and not leader(view):
        text = "it binds immediately, which needs a controller, and none is leader"
        yield fail(_CHECK, name, text, "see controller; or recreate it with volumeBindingMode WaitForFirstConsumer")
    else:
        yield ok(_CHECK, name, f"{len(objects)} nodes can serve it")


def _unknown_pool(view: View, storage_class: StorageClass) -> str:
    """Why no pool of any node is meant, "" when one is, or where their files are not seen from here."""
    wanted = storage_class.parameters.get(POOL, "")
    files = [file for file in view.files.values() if not isinstance(file, str)]
    if not wanted or not files or len(files) < len(view.files):
        return ""
    known = sorted({str(pool.get("name") or pool.get("kind", "")) for file in files for pool in file.get("pools", ())})
    return "" if wanted in known else f"it asks for pool {wanted!r}, and no node has one (there is {few(known)})"
