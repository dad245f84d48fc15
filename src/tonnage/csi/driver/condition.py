"""A volume's condition in CSI's words."""

from __future__ import annotations

from tonnage.csi._proto import csi_pb2
from tonnage.pools.base.contract import Condition


def to_proto(condition: Condition) -> csi_pb2.VolumeCondition:
    """CSI wants a message also when all is well."""
    return csi_pb2.VolumeCondition(abnormal=condition.abnormal, message=condition.message)
