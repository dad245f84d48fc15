"""Metrics of provisioning and deletion, named as external-provisioner's.

Its dashboards work here. As there, each failed attempt counts, and only successes have a duration
(sig-storage-lib-external-provisioner, controller/metrics).
"""

from __future__ import annotations

from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.observe import metrics


def provisioned(claim: PersistentVolumeClaim, seconds: float) -> None:
    """Count a created volume with its PV.

    seconds: since this attempt began.
    """
    labels = _labels(claim)
    metrics.PROVISIONED.labels(*labels).inc()
    metrics.PROVISION_SECONDS.labels(*labels).observe(seconds)


def not_provisioned(claim: PersistentVolumeClaim) -> None:
    """Count a failed attempt to create a volume."""
    metrics.PROVISION_FAILED.labels(*_labels(claim)).inc()


def deleted(volume: PersistentVolume, seconds: float) -> None:
    """Count a deleted volume.

    seconds: since this attempt began.
    """
    metrics.DELETED.labels(volume.spec.storage_class_name).inc()
    metrics.DELETE_SECONDS.labels(volume.spec.storage_class_name).observe(seconds)


def not_deleted(volume: PersistentVolume) -> None:
    """Count a failed attempt to delete a volume."""
    metrics.DELETE_FAILED.labels(volume.spec.storage_class_name).inc()


def _labels(claim: PersistentVolumeClaim) -> tuple[str, str]:
    source = claim.spec.data_source
    return claim.spec.storage_class_name or "", source.kind if source is not None else ""
