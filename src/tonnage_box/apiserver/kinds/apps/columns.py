"""Columns of `kubectl get deploy,rs,sts,ds,controllerrevisions` (pkg/printers/internalversion)."""

from __future__ import annotations

from tonnage_box.apiserver.printers.cells import CONTAINERS, SELECTOR, count
from tonnage_box.apiserver.printers.table import AGE, NAME, Obj, dig, of


def _ready(obj: Obj) -> str:
    return f"{dig(obj, 'status', 'readyReplicas') or 0}/{dig(obj, 'spec', 'replicas') or 0}"


READY = of("Ready", _ready, text="Pods that are ready, of how many.")
DEPLOYMENT = (
    NAME,
    READY,
    count("Up-to-date", "status", "updatedReplicas"),
    count("Available", "status", "availableReplicas"),
    AGE,
    *CONTAINERS,
    SELECTOR,
)
REPLICA_SET = (
    NAME,
    count("Desired", "spec", "replicas"),
    count("Current", "status", "replicas"),
    count("Ready", "status", "readyReplicas"),
    AGE,
    *CONTAINERS,
    SELECTOR,
)
STATEFUL_SET = (NAME, READY, AGE, *CONTAINERS)


def _nodes(obj: Obj) -> str:
    pairs = dig(obj, "spec", "template", "spec", "nodeSelector") or {}
    return ",".join(sorted(f"{key}={value}" for key, value in pairs.items())) or "<none>"


DAEMON_SET = (
    NAME,
    count("Desired", "status", "desiredNumberScheduled"),
    count("Current", "status", "currentNumberScheduled"),
    count("Ready", "status", "numberReady"),
    count("Up-to-date", "status", "updatedNumberScheduled"),
    count("Available", "status", "numberAvailable"),
    of("Node Selector", _nodes),
    AGE,
    *CONTAINERS,
    SELECTOR,
)


def _controller(obj: Obj) -> str:
    for owner in dig(obj, "metadata", "ownerReferences") or ():
        if owner.get("controller"):
            group = owner.get("apiVersion", "").rpartition("/")[0]
            kind = str(owner.get("kind", "")).lower()
            return f"{kind}.{group}/{owner.get('name')}" if group else f"{kind}/{owner.get('name')}"
    return "<none>"


CONTROLLER_REVISION = (NAME, of("Controller", _controller), count("Revision", "revision"), AGE)
