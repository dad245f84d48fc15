"""User stories of ephemeral volumes where a real kubelet matters; docs/stories.md lists them all."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cluster.__main__ import BUSYBOX
from tests.e2e import pods
from tests.e2e.machines import SYSTEM, Machines
from tests.e2e.processes import until
from tests.e2e.test_data_services import storage_class

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
MIB = 1 << 20
INLINE = {"name": "inline", "csi": {"driver": names.DRIVER, "volumeAttributes": {"size": "64Mi"}}}


def _ephemeral(name: str, size: str, storage_class: str = names.SCRATCH_CLASS, **spec: Any) -> dict[str, Any]:
    asked = {"storageClassName": storage_class, "resources": {"requests": {"storage": size}}}
    template = {"spec": {"accessModes": ["ReadWriteOnce"], **asked, **spec}}
    return {"name": name, "ephemeral": {"volumeClaimTemplate": template}}


def _spec(*volumes: dict[str, Any]) -> dict[str, Any]:
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    main = {"name": "main", "image": BUSYBOX, "command": ["sleep", "100000"], "volumeMounts": mounts}
    return {"terminationGracePeriodSeconds": 0, "containers": [main], "volumes": list(volumes)}


def _pod(name: str, *volumes: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": _spec(*volumes)}


def test_story_3_scratch_space_comes_from_where_the_pod_says(machines: Machines) -> None:
    """Two classes, three sizes, two file systems, a security context, an access mode, a raw block device."""
    machines.plane.apply(storage_class("stories-xfs"))
    body = _pod(
        "parts",
        _ephemeral("small", "64Mi"),
        _ephemeral("alone", "128Mi", accessModes=["ReadWriteOncePod"]),
        _ephemeral("xfs", "320Mi", "stories-xfs"),
    )
    spec = body["spec"]
    spec["volumes"].append(_ephemeral("raw", "64Mi", volumeMode="Block"))
    spec["securityContext"] = {"runAsUser": 1000, "fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch"}
    disk = {"name": "disk", "image": BUSYBOX, "command": ["sleep", "100000"], "securityContext": {"runAsUser": 0}}
    spec["containers"].append({**disk, "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}]})
    with pods.removed(machines, "pod/parts", "storageclass/stories-xfs"):
        machines.plane.apply(body)
        pods.wait_ready(machines, "parts")
        for path, size, fstype in (("/small", 64, "ext4"), ("/alone", 128, "ext4"), ("/xfs", 320, "xfs")):
            free = int(machines.shell("parts", f"df -k {path} | tail -n 1").split()[3]) << 10
            assert size * MIB <= free < (size + 48) * MIB, path
            assert f" {path} {fstype} " in machines.shell("parts", "cat /proc/mounts")
            assert machines.shell("parts", f"stat -c %g {path}").strip() == "2000"
            machines.shell("parts", f"echo x > {path}/f")
            assert machines.shell("parts", f"stat -c '%u %g' {path}/f").strip() == "1000 2000"
        dd = "dd if=/dev/zero of=/dev/raw bs=1M count=80 2>&1 || true"
        written = machines.plane.kubectl("exec", "parts", "-c", "disk", "--", "sh", "-c", dd)
        assert "No space left on device" in written


def test_story_5_scratch_space_through_app_controllers(machines: Machines) -> None:
    """At rest there is a claim for each pod, and after the last pod none."""
    template = {"metadata": {"labels": {"app": "story"}}, "spec": _spec(_ephemeral("data", "64Mi"), INLINE)}
    selector = {"matchLabels": {"app": "story"}}
    for kind, spec in (
        ("Deployment", {"replicas": 2}),
        ("StatefulSet", {"replicas": 2, "serviceName": "story"}),
        ("DaemonSet", {}),
    ):
        what = f"{kind.lower()}/story"
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "story"}}
        with pods.removed(machines, what):
            machines.plane.apply({**body, "spec": {**spec, "selector": selector, "template": template}})
            machines.plane.kubectl("rollout", "status", what, "--timeout=300s")
            assert _claims(machines) == 2
            machines.plane.kubectl("rollout", "restart", what)
            machines.plane.kubectl("rollout", "status", what, "--timeout=300s")
            until(machines.plane, "each pod has its claim", lambda: _claims(machines) == 2)
        until(machines.plane, f"nothing is left of the {kind}", lambda: _claims(machines) == 0)


def _claims(machines: Machines) -> int:
    found = machines.plane.get("pvc", "-n", "default")["items"]
    return sum("story" in claim["metadata"]["name"] for claim in found)


def test_story_6_ephemeral_volumes_are_in_the_metrics_of_the_kubelet(machines: Machines) -> None:
    with pods.removed(machines, "pod/measured"):
        machines.plane.apply(_pod("measured", _ephemeral("data", "64Mi"), INLINE))
        node = pods.wait_ready(machines, "measured")
        label = '{namespace="default",persistentvolumeclaim="measured-data"}'
        wanted = f"kubelet_volume_stats_capacity_bytes{label} "

        def value() -> list[str]:
            text = machines.plane.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/metrics")
            return re.findall(rf"^{re.escape(wanted)}(\S+)$", text, re.MULTILINE)

        until(machines.plane, "the kubelet measures it", lambda: bool(value()))
        blocks, size = machines.shell("measured", "stat -f -c '%b %S' /data").split()
        assert int(float(value()[0])) == int(blocks) * int(size)
        published = machines.plane.get("-n", SYSTEM, "csistoragecapacities")["items"]
        assert all(to_bytes(item["capacity"]) > 0 for item in published)
