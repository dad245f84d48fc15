"""Caches of storage objects that the scheduler reads."""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.storage import CSIDriver, StorageClass
from tonnage.kube.cache import Cache


@dataclass(frozen=True, slots=True)
class StorageObjects:
    """Caches of claims, PVs, classes and drivers."""

    claims: Cache[PersistentVolumeClaim]
    volumes: Cache[PersistentVolume]
    classes: Cache[StorageClass]
    drivers: Cache[CSIDriver]
