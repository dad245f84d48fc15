"""Pods of the demo, as the API reads them."""

from __future__ import annotations

import msgspec

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.cli.workloads import inline, pod_with


def test_a_pod_with_ephemeral_volumes() -> None:
    pod = msgspec.convert(pod_with("p", {"a": "1Gi", "b": "2Gi"}, restart="Never"), Pod)
    assert pod.claim_names() == ["p-a", "p-b"]
    assert pod.spec.restart_policy == "Never"
    (container,) = pod.spec.containers
    assert [mount.mount_path for mount in container.volume_mounts] == ["/a", "/b"]


def test_a_pod_with_an_inline_volume() -> None:
    (volume,) = msgspec.convert(inline("p", "1Gi"), Pod).spec.volumes
    assert volume.csi is not None
    assert (volume.csi.driver, volume.csi.volume_attributes) == (names.DRIVER, {"size": "1Gi"})
