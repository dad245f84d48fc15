"""Manifests written for PMEM-CSI run unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "pmem-csi"


@pytest.fixture(scope="module")
def pmem(make_cluster):  # type: ignore[no-untyped-def]
    """A cluster that also serves pmem-csi.intel.com."""
    cluster = make_cluster(
        "--nodes", "2", "--pool", "image,name=scratch,size=30716Mi,sparse=yes,overcommit=yes", "--compat", "pmem-csi"
    )
    cluster.up()
    yield cluster
    cluster.down("--purge")


@pytest.mark.parametrize(
    ("manifest", "pod", "room"),
    [
        ("pmem-app-generic-ephemeral.yaml", "my-csi-app-inline-volume", "26620Mi"),
        ("pmem-app-ephemeral.yaml", "my-csi-app-inline-volume", "28668Mi"),
    ],
)
def test_runs_unchanged_and_takes_room_of_the_shared_pool(pmem, manifest: str, pod: str, room: str) -> None:  # type: ignore[no-untyped-def]
    assert "pmem-csi.intel.com" in pmem.kubectl("get", "csidrivers")
    pmem.kubectl("apply", "-f", str(EXAMPLES / manifest))
    pmem.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=300s")
    node = pmem.get("pod", pod)["spec"]["nodeName"]

    for storage_class in ("tonnage-scratch", "pmem-csi-sc-late-binding"):
        pmem.until(
            f"{storage_class} counts the volume",
            lambda name=storage_class: pmem.capacities(name).get(node) == room,
        )
    pmem.kubectl("delete", "pod", pod, "--grace-period=1", "--timeout=300s")
    pmem.until("all room is back", lambda: set(pmem.capacities().values()) == {"30716Mi"})


def test_the_persistent_volumes_of_two_classes(pmem) -> None:  # type: ignore[no-untyped-def]
    for manifest in ("pmem-pvc.yaml", "pmem-app.yaml"):
        pmem.kubectl("apply", "-f", str(EXAMPLES / manifest))
    pmem.kubectl("wait", "--for=condition=Ready", "pod/my-csi-app-1", "pod/my-csi-app-2", "--timeout=300s")
    for pod, fstype in (("my-csi-app-1", "ext4"), ("my-csi-app-2", "xfs")):
        assert f" on /data type {fstype} " in pmem.kubectl("exec", pod, "--", "mount")
    for manifest in ("pmem-app.yaml", "pmem-pvc.yaml"):
        pmem.kubectl("delete", "--grace-period=1", "--timeout=300s", "-f", str(EXAMPLES / manifest))
