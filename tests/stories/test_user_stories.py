"""The user stories of ephemeral volumes, in a box with the real kubectl: one test each."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import Cluster
from tests.stories.objects import (
    FAST,
    INLINE,
    apply,
    claim,
    ephemeral,
    events,
    of_claim,
    pod,
    pod_spec,
    run,
    sh,
    size_of,
)

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

pytestmark = pytest.mark.real
MI = 1 << 20
SNAPSHOT = "snapshot.storage.k8s.io"


def _left(box: Cluster) -> list[str]:
    """Claims, volumes, files of the pools and mounts of pods."""
    objects = [item["metadata"]["name"] for item in box.get("pvc,pv,volumesnapshots")["items"]]
    files = [str(path) for path in box.images()]
    mounts = Path(f"/proc/{box.pid()}/mounts").read_text().splitlines()
    return [*objects, *files, *(line for line in mounts if str(box.data) in line and "/pods/" in line)]


def _is_empty(box: Cluster) -> None:
    box.until("nothing is left", lambda: not _left(box))


def test_story_2_scratch_space_is_created_and_deleted_with_the_pod(box: Cluster) -> None:
    before = box.capacities()
    run(box, pod("job", ephemeral("claimed", "64Mi"), {"name": "inline", "csi": INLINE}))
    assert sh(box, "job", "echo x > /claimed/f && echo y > /inline/f && cat /claimed/f /inline/f").split() == ["x", "y"]
    (found,) = box.get("pvc")["items"]
    owner = found["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], found["metadata"]["name"]) == ("Pod", "job", "job-claimed")
    assert len([path for path in _left(box) if path.endswith(".img")]) == 2

    box.kubectl("delete", "pod", "job", "--timeout=60s")

    _is_empty(box)
    box.until("all capacity is published again", lambda: box.capacities() == before)


def test_story_3_scratch_space_comes_from_where_the_pod_says(box: Cluster) -> None:
    """Two classes of two pools, sizes, file systems, a security context, an access mode, a raw block device."""
    body = pod(
        "parts",
        ephemeral("small", "64Mi"),
        ephemeral("alone", "128Mi", accessModes=["ReadWriteOncePod"]),
        ephemeral("fast", "320Mi", FAST),
    )
    body["spec"]["volumes"].append(ephemeral("raw", "64Mi", FAST, volumeMode="Block"))
    body["spec"]["securityContext"] = {"runAsUser": 1000, "fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch"}
    devices = [{"name": "raw", "devicePath": "/dev/raw"}]
    disk = {"name": "disk", "image": "busybox", "command": ["sleep", "100000"], "securityContext": {"runAsUser": 0}}
    body["spec"]["containers"].append({**disk, "volumeDevices": devices})
    run(box, body)

    for path, size, fstype in (("/small", 64, "ext4"), ("/alone", 128, "ext4"), ("/fast", 320, "xfs")):
        free = int(sh(box, "parts", f"df -k {path} | tail -n 1").split()[3]) << 10
        assert size * MI <= free < (size + 48) * MI, path
        assert f" on {path} type {fstype} " in sh(box, "parts", "mount")
        assert sh(box, "parts", f"stat -c %g {path}") == "2000"
        assert sh(box, "parts", f"echo x > {path}/f && stat -c '%u %g' {path}/f") == "1000 2000"
    written = sh(box, "parts", "dd if=/dev/zero of=/dev/raw bs=1M count=64 2>&1 && ls -l /dev/raw", "-c", "disk")
    assert written.splitlines()[-1].startswith("b")
    full = sh(box, "parts", "dd if=/dev/zero of=/dev/raw bs=1M count=80 2>&1 || true", "-c", "disk")
    assert "No space left on device" in full
    pools = {c["metadata"]["name"]: _pool(box, c["spec"]["volumeName"]) for c in box.get("pvc")["items"]}
    expected = {"parts-small": "scratch", "parts-alone": "scratch", "parts-fast": "fast", "parts-raw": "fast"}
    assert pools == expected

    box.kubectl("delete", "pod", "parts", "--timeout=60s")
    _is_empty(box)


def _pool(box: Cluster, volume: str) -> str:
    return str(box.get("pv", volume)["spec"]["csi"]["volumeHandle"]).partition("/")[0]


def test_story_4_features_of_claims_work_for_the_claim_of_a_running_pod(box: Cluster) -> None:
    """Status, Events, growth, a snapshot and its restore into the ephemeral volume of another pod."""
    run(box, pod("app", ephemeral("data", "320Mi", FAST)))
    found = box.get("pvc", "app-data")
    assert found["status"]["phase"] == "Bound"
    assert to_bytes(found["status"]["capacity"]["storage"]) == 320 * MI

    before = size_of(box, "app", "/data")
    box.kubectl("patch", "pvc", "app-data", "-p", '{"spec": {"resources": {"requests": {"storage": "640Mi"}}}}')
    grown = "--for=jsonpath={.status.capacity.storage}=640Mi"
    box.kubectl("wait", grown, "pvc/app-data", "--timeout=60s")
    box.until("df shows it in the pod", lambda: size_of(box, "app", "/data") >= before + 300 * MI)
    box.until("its Events report the growth", lambda: "VolumeResizeSuccessful" in events(box, "app-data"))

    sh(box, "app", "echo monday > /data/file && sync")
    snapshot = {"apiVersion": f"{SNAPSHOT}/v1", "kind": "VolumeSnapshot", "metadata": {"name": "monday"}}
    apply(box, {**snapshot, "spec": {"source": {"persistentVolumeClaimName": "app-data"}}})
    box.kubectl("wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/monday", "--timeout=60s")
    sh(box, "app", "echo tuesday > /data/file && sync")
    source = {"apiGroup": SNAPSHOT, "kind": "VolumeSnapshot", "name": "monday"}
    run(box, pod("again", ephemeral("data", "640Mi", FAST, dataSource=source)))
    assert sh(box, "again", "cat /data/file") == "monday"
    assert sh(box, "app", "cat /data/file") == "tuesday"

    box.kubectl("delete", "pod/app", "pod/again", "volumesnapshot/monday", "--timeout=60s")
    _is_empty(box)


def _template(name: str) -> dict[str, Any]:
    volumes = (ephemeral("claimed", "16Mi"), {"name": "inline", "csi": INLINE})
    return {"metadata": {"labels": {"app": name}}, "spec": pod_spec(*volumes)}


def _workload(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    body = {"selector": {"matchLabels": {"app": name}}, "template": _template(name), **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": body}


def _has_volumes(box: Cluster, count: int, *, pods: int | None = None) -> None:
    """At rest there are as many pods as that, and for each a claim, a PersistentVolume and two images."""

    def holds() -> bool:
        found = box.get("pods,pvc,pv")["items"]
        there = {kind: [o for o in found if o["kind"] == kind] for kind in ("Pod", "PersistentVolumeClaim")}
        pvs = len(found) - sum(map(len, there.values()))
        ready = [p for p in there["Pod"] if p["status"]["phase"] in ("Running", "Succeeded")]
        numbers = (len(ready), len(there["Pod"]), len(there["PersistentVolumeClaim"]), pvs)
        return numbers == (count,) * 4 and len(box.images()) == (pods if pods is not None else 2 * count)

    box.until(f"{count} pods have their volumes, and there are no others", holds)


def test_story_5_controllers_that_scale(box: Cluster) -> None:
    """Each of three scales up, rolls out and scales down, all at once."""
    names_of = {"Deployment": "deployment/a", "StatefulSet": "statefulset/b", "ReplicaSet": "replicaset/c"}
    rolled = [what for kind, what in names_of.items() if kind != "ReplicaSet"]  # it has no rollout
    for kind, what in names_of.items():
        more = {"serviceName": "b"} if kind == "StatefulSet" else {}
        apply(box, _workload(kind, what[-1], replicas=1, **more))
    _has_volumes(box, 3)
    box.kubectl("scale", *names_of.values(), "--replicas=2")
    _has_volumes(box, 6)
    before = _pods(box, *rolled)
    box.kubectl("rollout", "restart", *rolled)
    for what in rolled:
        box.kubectl("rollout", "status", what, "--timeout=120s")
    _has_volumes(box, 6)
    after = _pods(box, *rolled)
    assert (len(before), len(after), before & after) == (4, 4, set())
    box.kubectl("scale", *names_of.values(), "--replicas=1")
    _has_volumes(box, 3)
    box.kubectl("delete", *names_of.values(), "--timeout=60s")
    _is_empty(box)


def _pods(box: Cluster, *workloads: str) -> set[str]:
    """The uids of the workloads' pods."""
    found = box.get("pods", "-l", f"app in ({','.join(what[-1] for what in workloads)})")["items"]
    return {pod["metadata"]["uid"] for pod in found}


def test_story_5_daemon_set(box: Cluster) -> None:
    apply(box, _workload("DaemonSet", "each"))
    _has_volumes(box, 2)
    assert {p["spec"]["nodeName"] for p in box.get("pods")["items"]} == {"node-1", "node-2"}
    box.kubectl("rollout", "restart", "daemonset/each")
    box.kubectl("rollout", "status", "daemonset/each", "--timeout=120s")
    _has_volumes(box, 2)
    box.kubectl("delete", "daemonset", "each", "--timeout=60s")
    _is_empty(box)


def test_story_5_job_and_cron_job(box: Cluster) -> None:
    """Pods that have ended keep their claims until they are deleted; their inline volumes end with them."""
    template = _template("once")
    template["spec"] |= {"restartPolicy": "Never"}
    template["spec"]["containers"][0]["command"] = ["sh", "-c", "echo x > /claimed/f && echo x > /inline/f"]
    spec = {"completions": 2, "parallelism": 2, "template": template}
    cron = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    apply(box, {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "cron"}, "spec": cron})
    box.kubectl("create", "job", "once", "--from=cronjob/cron")
    box.kubectl("wait", "--for=condition=Complete", "job/once", "--timeout=120s")
    _has_volumes(box, 2, pods=2)
    box.kubectl("delete", "cronjob/cron", "--timeout=60s")  # and with it the Job, which it owns
    _is_empty(box)


def test_story_6_ephemeral_volumes_are_in_the_metrics_of_the_kubelet(box: Cluster) -> None:
    run(box, pod("measured", ephemeral("claimed", "64Mi"), {"name": "inline", "csi": INLINE}))
    node = box.get("pod", "measured")["spec"]["nodeName"]
    wanted = 'kubelet_volume_stats_capacity_bytes{namespace="default",persistentvolumeclaim="measured-claimed"} '

    def metrics() -> str:
        return box.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/metrics")

    box.until("the kubelet measures it", lambda: wanted in metrics())
    (value,) = re.findall(rf"^{re.escape(wanted)}(\S+)$", metrics(), re.MULTILINE)
    assert int(float(value)) == size_of(box, "measured", "/claimed")
    summary = json.loads(box.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary"))
    (mine,) = [found for found in summary["pods"] if found["podRef"]["name"] == "measured"]
    volumes = {found["name"]: found for found in mine["volume"]}
    assert volumes["claimed"]["pvcRef"] == {"name": "measured-claimed", "namespace": "default"}
    assert volumes["inline"]["capacityBytes"] == size_of(box, "measured", "/inline")
    assert "pvcRef" not in volumes["inline"]
    box.kubectl("delete", "pod", "measured", "--timeout=60s")
    _is_empty(box)


def test_walk_through_kubectl_describes_capacity(box: Cluster) -> None:
    said = box.kubectl("describe", "csistoragecapacities", "-n", names.SYSTEM_NAMESPACE)
    described = {line.strip().partition(":")[0] for line in said.splitlines()}
    assert {"Capacity", "Maximum Volume Size", "Node Topology", "Storage Class Name"} <= described
    assert set(re.findall(r"^Storage Class Name: +(\S+)$", said, re.MULTILINE)) >= {FAST, names.SCRATCH_CLASS}
    assert set(re.findall(rf"{names.TOPOLOGY_NODE}: +(\S+)", said)) == {"node-1", "node-2"}


def test_use_case_read_only_access_to_volumes_with_data(box: Cluster) -> None:
    """A restored snapshot, a clone, a content, an ephemeral clone: the data is there, and a write fails with EROFS."""
    run(box, claim("origin", "320Mi", FAST), pod("origin", of_claim("origin")))
    sh(box, "origin", "echo known > /origin/file && sync")
    snapshot = {"apiVersion": f"{SNAPSHOT}/v1", "kind": "VolumeSnapshot", "metadata": {"name": "known"}}
    content = {"apiVersion": "tonnage.dev/v1", "kind": "Content", "metadata": {"name": "models"}}
    apply(
        box,
        {**snapshot, "spec": {"source": {"persistentVolumeClaimName": "origin"}}},
        {**content, "spec": {"folder": {"name": "models"}}},
    )
    box.kubectl("wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/known", "--timeout=60s")
    sources: dict[str, dict[str, Any]] = {
        "restored": {"apiGroup": SNAPSHOT, "kind": "VolumeSnapshot", "name": "known"},
        "cloned": {"kind": "PersistentVolumeClaim", "name": "origin"},
        "filled": {"apiGroup": "tonnage.dev", "kind": "Content", "name": "models"},
    }
    for name, source in sources.items():
        apply(box, claim(name, "320Mi", FAST, dataSourceRef=source), pod(name, of_claim(name, readOnly=True)))
    body = pod("ephemeral", ephemeral("ephemeral", "320Mi", FAST, dataSource=sources["cloned"]))
    body["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] = True
    apply(box, body)
    pods = [f"pod/{name}" for name in (*sources, "ephemeral")]
    box.kubectl("wait", "--for=condition=Ready", *pods, "--timeout=120s")
    for name in (*sources, "ephemeral"):
        assert sh(box, name, f"cat /{name}/file") == ("from a folder" if name == "filled" else "known")
        assert "Read-only file system" in sh(box, name, f"touch /{name}/new 2>&1 || true")
    box.kubectl("delete", *pods, "pod/origin", "--timeout=60s")
    claims = [f"pvc/{name}" for name in (*sources, "origin")]
    box.kubectl("delete", *claims, "volumesnapshot/known", "content/models", "--timeout=60s")
    _is_empty(box)


async def test_story_4_a_damaged_volume_is_reported_on_the_claim(tmp_path: Path, kubectl_program: str) -> None:
    """Volume health: the claim of the running pod has the Event, and kubectl describe shows it."""
    data = DataFolder(tmp_path / "d")
    box = Box(data, plan(data, Settings(nodes=1, pools=["image,size=1Gi,sparse=yes"], runtime="none")))
    await box.start()
    try:
        body = pod("app", ephemeral("data", "16Mi"))
        await box.client.create(PODS, body, "default")
        async with asyncio.timeout(120):
            while not (images := list(tmp_path.rglob("pvc-*.img"))) or await _phase(box, "app") != "Running":
                await asyncio.sleep(0.05)
        images[0].rename(tmp_path / "hidden")
        agent = box.nodes["node-1"].agent
        (driver,) = agent.context.drivers
        await agent.health.look(driver)  # as it does each minute or two
        kubeconfig, said = f"--kubeconfig={data.kubeconfig}", ""
        async with asyncio.timeout(120):
            while "VolumeConditionAbnormal" not in said:
                process = await asyncio.create_subprocess_exec(
                    kubectl_program, kubeconfig, "describe", "pvc", "app-data", stdout=asyncio.subprocess.PIPE
                )
                said = (await process.communicate())[0].decode()
        (tmp_path / "hidden").rename(images[0])
        await agent.health.look(driver)
    finally:
        await box.stop()


async def _phase(box: Box, name: str) -> str:
    return (await box.client.get(PODS, name, "default")).status.phase
