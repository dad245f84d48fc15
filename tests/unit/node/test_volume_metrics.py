"""What became of volumes, as external-provisioner counts it."""

from __future__ import annotations

from tonnage.api.core import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    TypedReference,
)
from tonnage.node import volume_metrics as provisioner_metrics
from tonnage.observe import metrics


def _value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_claims_are_counted_by_class_and_source() -> None:
    source = TypedReference(kind="VolumeSnapshot", name="s")
    claim = PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(storage_class_name="o-c", data_source=source))
    plain = PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(storage_class_name="o-c"))
    provisioner_metrics.not_provisioned(claim)
    provisioner_metrics.provisioned(claim, 0.3)
    provisioner_metrics.provisioned(plain, 0.1)

    name, labels = "controller_persistentvolumeclaim_provision", {"class": "o-c", "source": "VolumeSnapshot"}
    assert _value(f"{name}_total", **labels) == 1
    assert _value(f"{name}_failed_total", **labels) == 1
    assert _value(f"{name}_duration_seconds_sum", **labels) == 0.3
    assert _value(f"{name}_total", **{**labels, "source": ""}) == 1
    assert _value(f"{name}_failed_total", **{**labels, "source": ""}) == 0


def test_deletions_are_counted_by_class() -> None:
    volume = PersistentVolume(spec=PersistentVolumeSpec(storage_class_name="o-d"))
    provisioner_metrics.not_deleted(volume)
    provisioner_metrics.not_deleted(volume)
    provisioner_metrics.deleted(volume, 2.0)
    name, labels = "controller_persistentvolume_delete", {"class": "o-d"}
    assert _value(f"{name}_total", **labels) == 1
    assert _value(f"{name}_failed_total", **labels) == 2
    assert _value(f"{name}_duration_seconds_sum", **labels) == 2.0
