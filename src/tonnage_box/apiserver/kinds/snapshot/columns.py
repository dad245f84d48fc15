"""Columns of snapshot.storage.k8s.io and groupsnapshot.storage.k8s.io, as upstream's CRDs have them."""

from __future__ import annotations

from datetime import datetime

from tonnage_box.apiserver.printers.table import AGE, NAME, Column, Obj, age, at, dig, of

_POLICY = at("DeletionPolicy", "spec", "deletionPolicy")


def _ready(obj: Obj) -> object:
    value = dig(obj, "status", "readyToUse")
    return "" if value is None else ("true" if value else "false")


def _taken(obj: Obj, now: datetime) -> str:
    moment = dig(obj, "status", "creationTime")
    return age(moment, now) if moment else ""


READY = of("ReadyToUse", _ready, kind="boolean")
_TAKEN = Column("CreationTime", _taken, type="date", text="Time since the moment whose data it has.")
SNAPSHOT = (
    NAME,
    READY,
    at("SourcePVC", "spec", "source", "persistentVolumeClaimName"),
    at("SourceSnapshotContent", "spec", "source", "volumeSnapshotContentName"),
    at("RestoreSize", "status", "restoreSize"),
    at("SnapshotClass", "spec", "volumeSnapshotClassName"),
    at("SnapshotContent", "status", "boundVolumeSnapshotContentName"),
    _TAKEN,
    AGE,
)
CONTENT = (
    NAME,
    READY,
    at("RestoreSize", "status", "restoreSize", kind="integer"),
    _POLICY,
    at("Driver", "spec", "driver"),
    at("VolumeSnapshotClass", "spec", "volumeSnapshotClassName"),
    at("VolumeSnapshot", "spec", "volumeSnapshotRef", "name"),
    at("VolumeSnapshotNamespace", "spec", "volumeSnapshotRef", "namespace"),
    AGE,
)
CLASS = (NAME, at("Driver", "driver"), at("DeletionPolicy", "deletionPolicy"), AGE)
GROUP = (
    NAME,
    READY,
    at("VolumeGroupSnapshotClass", "spec", "volumeGroupSnapshotClassName"),
    at("VolumeGroupSnapshotContent", "status", "boundVolumeGroupSnapshotContentName"),
    _TAKEN,
    AGE,
)
GROUP_CONTENT = (
    NAME,
    READY,
    _POLICY,
    at("Driver", "spec", "driver"),
    at("VolumeGroupSnapshotClass", "spec", "volumeGroupSnapshotClassName"),
    at("VolumeGroupSnapshotNamespace", "spec", "volumeGroupSnapshotRef", "namespace"),
    at("VolumeGroupSnapshot", "spec", "volumeGroupSnapshotRef", "name"),
    AGE,
)
