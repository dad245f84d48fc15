"""What Kubernetes' External Storage tests are told of tonnage, the same for a box and for real clusters."""

from __future__ import annotations

from collections.abc import Mapping

from tonnage.host import filesystem
from tonnage.kubernetes.api import names

IMMEDIATE = "-immediate"
"""The end of a disk's name where the class of the tests binds at once."""
ATTRIBUTES: Mapping[str, object] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "VolumeAttributesClass",
    "metadata": {"name": "upstream-tests"},
    "driverName": names.DRIVER,
    "parameters": {"erase": "none"},
}
"""The class that the tests copy; they need it on the server. One whose parameter each pool can change."""
UNGROWN = (
    r"\((default fs|ext4)\).*("
    r"volume-expand.*should resize volume when PVC is edited while pod is using it"
    r"|ephemeral should support expansion of pvcs)"
)
"""What needs a kernel that grows a mounted ext4, the file system of image pools' volumes where nothing is asked for."""
_ATTRIBUTES_SINCE = (1, 34)
"""The release that serves VolumeAttributesClass by default, as v1."""


def driver(disk: str, release: str) -> Mapping[str, object]:
    """The driver file: test/e2e/storage/external in Kubernetes' source says what it means. release: as v1.36.3."""
    is_image = disk != "btrfs"
    offered = ["persistence", "fsGroup", "exec", "multipods", "topology", "singleNodeVolume", "capacity"]
    offered += ["pvcDataSource", "readWriteOncePod", "snapshotDataSource", "controllerExpansion", "nodeExpansion"]
    offered += ["offlineExpansion", "onlineExpansion", *(["block"] if is_image else [])]
    described: dict[str, object] = {
        "ShortName": f"tonnage-{disk}",
        "StorageClass": {
            "FromExistingClassName": names.IMMEDIATE_CLASS if disk.endswith(IMMEDIATE) else names.SCRATCH_CLASS
        },
        "SnapshotClass": {"FromName": True},
        "InlineVolumes": [{"Attributes": {"size": "300Mi"}, "Shared": False, "ReadOnly": False}],
        "DriverInfo": {
            "Name": names.DRIVER,
            "SupportedSizeRange": {"Min": "300Mi"},  # the smallest xfs
            "SupportedFsType": {key: {} for key in (("", "ext4", "xfs") if is_image else ("", "btrfs"))},
            "TopologyKeys": [names.TOPOLOGY_NODE],
            "Capabilities": dict.fromkeys(offered, True) | dict.fromkeys(("volumeLimits", "RWX"), False),
            "StressTestOptions": {"NumPods": 10, "NumRestarts": 10},
            "VolumeSnapshotStressTestOptions": {"NumPods": 4, "NumSnapshots": 4},
        },
    }
    major, minor = release.removeprefix("v").split(".")[:2]
    if (int(major), int(minor)) >= _ATTRIBUTES_SINCE:
        described["VolumeAttributesClass"] = {"FromExistingClassName": "upstream-tests"}
    return described


def ungrown() -> list[str]:
    """Regular expressions of the tests that are left out on this machine: it may lack CAP_SYS_RESOURCE."""
    return [] if filesystem.may_grow_ext4() else [UNGROWN]
