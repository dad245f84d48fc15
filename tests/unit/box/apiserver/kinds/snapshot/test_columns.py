"""Columns of the snapshot kinds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tonnage_box.apiserver.kinds.snapshot import columns as snapshot
from tonnage_box.apiserver.printers.table import table

NOW = datetime(2026, 1, 2, 3, 5, 5, tzinfo=UTC)
META = {"name": "x", "creationTimestamp": "2026-01-02T03:04:05Z"}


def cells(columns: Any, **fields: Any) -> list[Any]:
    found: list[Any] = table(columns, [{"metadata": META, **fields}], NOW, "None", {})["rows"][0]["cells"]
    return found


def test_a_snapshot_before_and_after() -> None:
    spec = {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "tonnage"}
    assert cells(snapshot.SNAPSHOT, spec=spec) == ["x", "", "data", "", "", "tonnage", "", "", "60s"]
    status = {
        "readyToUse": True, "restoreSize": "1Gi", "boundVolumeSnapshotContentName": "snapcontent-u",
        "creationTime": "2026-01-02T03:04:35Z",
    }  # fmt: skip
    assert cells(snapshot.SNAPSHOT, spec=spec, status=status) == [
        "x", "true", "data", "", "1Gi", "tonnage", "snapcontent-u", "30s", "60s",
    ]  # fmt: skip


def test_a_content_and_a_class() -> None:
    spec = {
        "deletionPolicy": "Delete", "driver": "a.b", "volumeSnapshotClassName": "tonnage",
        "volumeSnapshotRef": {"name": "monday", "namespace": "shop"},
    }  # fmt: skip
    shown = cells(snapshot.CONTENT, spec=spec, status={"readyToUse": False, "restoreSize": 5})
    assert shown == ["x", "false", 5, "Delete", "a.b", "tonnage", "monday", "shop", "60s"]
    assert cells(snapshot.CLASS, driver="a.b", deletionPolicy="Retain") == ["x", "a.b", "Retain", "60s"]


def test_a_group_and_its_content() -> None:
    spec = {"source": {"selector": {}}, "volumeGroupSnapshotClassName": "tonnage"}
    status = {"readyToUse": True, "boundVolumeGroupSnapshotContentName": "c", "creationTime": "2026-01-02T03:04:35Z"}
    assert cells(snapshot.GROUP, spec=spec, status=status) == ["x", "true", "tonnage", "c", "30s", "60s"]
    spec = {
        "deletionPolicy": "Delete", "driver": "a.b", "volumeGroupSnapshotClassName": "tonnage",
        "volumeGroupSnapshotRef": {"name": "monday", "namespace": "shop"},
    }  # fmt: skip
    shown = cells(snapshot.GROUP_CONTENT, spec=spec, status={"readyToUse": False})
    assert shown == ["x", "false", "Delete", "a.b", "tonnage", "shop", "monday", "60s"]
