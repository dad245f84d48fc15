"""The caches of storage objects that the scheduler reads."""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.storage import CSIDriver, StorageClass
from tonnage.kube.cache import Cache


@dataclass(frozen=True, slots=True)
class StorageObjects:
    """The caches that say what claims, volumes, classes and drivers there are."""

    claims: Cache[PersistentVolumeClaim]
    volumes: Cache[PersistentVolume]
    classes: Cache[StorageClass]
    drivers: Cache[CSIDriver]
