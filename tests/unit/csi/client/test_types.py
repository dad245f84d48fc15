"""Kubernetes' access modes in CSI's words."""

from __future__ import annotations

from tonnage.csi.client.types import (
    AccessMode,
    VolumeCapability,
)

MOUNT = [VolumeCapability()]


def test_the_access_modes_of_kubernetes() -> None:
    plain = [AccessMode.of(mode, single_node_multi_writer=False) for mode in ("ReadWriteOnce", "ReadWriteOncePod")]
    fine = [AccessMode.of(mode, single_node_multi_writer=True) for mode in ("ReadWriteOnce", "ReadWriteOncePod")]
    assert plain == [AccessMode.SINGLE_NODE_WRITER] * 2
    assert fine == [AccessMode.SINGLE_NODE_MULTI_WRITER, AccessMode.SINGLE_NODE_SINGLE_WRITER]
    assert AccessMode.of("ReadWriteMany", single_node_multi_writer=True) is AccessMode.MULTI_NODE_MULTI_WRITER
