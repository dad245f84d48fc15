"""What became of volumes, as external-provisioner counts it."""

from __future__ import annotations

from tonnage.api.core import (
    PersistentVolume,
    PersistentVolumeSpec,
)
from tonnage.node import volume_metrics
from tonnage.observe import metrics


def _value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_deletions_are_counted_by_class() -> None:
    volume = PersistentVolume(spec=PersistentVolumeSpec(storage_class_name="o-d"))
    volume_metrics.not_deleted(volume)
    volume_metrics.not_deleted(volume)
    volume_metrics.deleted(volume, 2.0)
    name, labels = "controller_persistentvolume_delete", {"class": "o-d"}
    assert _value(f"{name}_total", **labels) == 1
    assert _value(f"{name}_failed_total", **labels) == 2
    assert _value(f"{name}_duration_seconds_sum", **labels) == 2.0
