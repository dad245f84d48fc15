"""Manifests written for PMEM-CSI run unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


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
        ("pmem-csi-generic.yaml", "my-csi-app-generic-ephemeral", "26620Mi"),
        ("pmem-csi-inline.yaml", "my-csi-app-inline-volume", "28668Mi"),
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
