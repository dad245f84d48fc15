"""What became of volumes, counted under external-provisioner's names and labels, so that its dashboards work here.

As there a try that fails counts each time, and only successes have a duration (sig-storage-lib-external-provisioner,
controller/metrics).
"""

from __future__ import annotations

from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.observe import metrics


def provisioned(claim: PersistentVolumeClaim, seconds: float) -> None:
    """A volume was made and written down; seconds: since this try began."""
    labels = _labels(claim)
    metrics.PROVISIONED.labels(*labels).inc()
    metrics.PROVISION_SECONDS.labels(*labels).observe(seconds)


def not_provisioned(claim: PersistentVolumeClaim) -> None:
    """A try to make one failed."""
    metrics.PROVISION_FAILED.labels(*_labels(claim)).inc()


def deleted(volume: PersistentVolume, seconds: float) -> None:
    """A volume is gone; seconds: since this try began."""
    metrics.DELETED.labels(volume.spec.storage_class_name).inc()
    metrics.DELETE_SECONDS.labels(volume.spec.storage_class_name).observe(seconds)


def not_deleted(volume: PersistentVolume) -> None:
    """A try to delete one failed."""
    metrics.DELETE_FAILED.labels(volume.spec.storage_class_name).inc()


def _labels(claim: PersistentVolumeClaim) -> tuple[str, str]:
    source = claim.spec.data_source
    return claim.spec.storage_class_name or "", source.kind if source is not None else ""
