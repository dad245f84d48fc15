"""What an API server and a snapshot controller write before a snapshot is stored."""

from __future__ import annotations

from tonnage.kubernetes.api.group_snapshot import GROUP_BOUND
from tonnage.kubernetes.api.snapshot import AS_SOURCE, BOUND
from tonnage_box.apiserver.storage.store import Obj


def snapshot(new: Obj, old: Obj | None) -> None:
    """A VolumeSnapshot has its finalizers from the start: its controller need not write them first."""
    no_status(new, old)
    if old is None:
        _protect(new, AS_SOURCE, BOUND)


def group_snapshot(new: Obj, old: Obj | None) -> None:
    """A VolumeGroupSnapshot has its finalizer from the start, as a VolumeSnapshot has."""
    no_status(new, old)
    if old is None:
        _protect(new, GROUP_BOUND)


def _protect(new: Obj, *added: str) -> None:
    finalizers = new["metadata"].setdefault("finalizers", [])
    finalizers += [f for f in added if f not in finalizers]


def no_status(new: Obj, old: Obj | None) -> None:
    """A custom resource begins without a status: upstream's snapshotter looks whether there is one."""
    if old is None:
        new.pop("status", None)
