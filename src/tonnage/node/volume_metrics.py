"""Metrics of deletion, named as external-provisioner's.

Its dashboards work here. As there, each failed attempt counts, and only successes have a duration
(sig-storage-lib-external-provisioner, controller/metrics).
"""

from __future__ import annotations

from tonnage.api.core import PersistentVolume
from tonnage.observe import metrics


def deleted(volume: PersistentVolume, seconds: float) -> None:
    """Count a deleted volume.

    seconds: since this attempt began.
    """
    metrics.DELETED.labels(volume.spec.storage_class_name).inc()
    metrics.DELETE_SECONDS.labels(volume.spec.storage_class_name).observe(seconds)


def not_deleted(volume: PersistentVolume) -> None:
    """Count a failed attempt to delete a volume."""
    metrics.DELETE_FAILED.labels(volume.spec.storage_class_name).inc()
