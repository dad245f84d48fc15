"""Conversion of a volume's condition to CSI."""

from __future__ import annotations

from tonnage.csi._proto import csi_pb2
from tonnage.pools.base.contract import VolumeCondition


def to_proto(condition: VolumeCondition) -> csi_pb2.VolumeCondition:
    """CSI requires a message also for a healthy volume."""
    return csi_pb2.VolumeCondition(abnormal=condition.abnormal, message=condition.message)
