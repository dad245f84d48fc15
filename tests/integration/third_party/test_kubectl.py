"""What a user does with the kubectl that is there, on a real cluster with real volumes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cluster import programs

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
POD = "my-app"
CLAIM = f"{POD}-data"


@pytest.fixture
def pod(cluster):  # type: ignore[no-untyped-def]
    """The example pod, Ready; gone afterwards."""
    cluster.kubectl("apply", "-f", str(EXAMPLES / "pod-ephemeral.yaml"))
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=300s")
    yield cluster.get("pod", POD)
    cluster.kubectl("delete", "pod", "--all", "--grace-period=1", "--timeout=300s")
    cluster.until("all room is back", lambda: set(cluster.capacities().values()) == {"30716Mi"})


def test_what_up_says_leads_on(cluster) -> None:  # type: ignore[no-untyped-def]
    assert "3 nodes, 30716Mi (image) each" in cluster.said
    assert f"export KUBECONFIG={cluster.data}/kubeconfig" in cluster.said
    assert (cluster.data / "kubeconfig").stat().st_mode & 0o777 == 0o600


def test_nodes_classes_and_driver(cluster) -> None:  # type: ignore[no-untyped-def]
    shown = cluster.kubectl("get", "nodes,sc,csidriver")

    assert shown.count(" Ready ") == 3
    assert "tonnage-scratch (default)" in shown
    assert "csi.tonnage.dev" in shown
    assert "WaitForFirstConsumer" in shown


def test_claim_is_kubernetes_own(cluster, pod) -> None:  # type: ignore[no-untyped-def]
    claim = cluster.get("pvc", CLAIM)
    node, metadata = pod["spec"]["nodeName"], claim["metadata"]

    assert metadata["annotations"] == {
        "pv.kubernetes.io/bind-completed": "yes",
        "pv.kubernetes.io/bound-by-controller": "yes",
        "tonnage.dev/single-claim": metadata["uid"],  # its agent need not ask for the pod's other claims
        "volume.beta.kubernetes.io/storage-provisioner": "csi.tonnage.dev",
        "volume.kubernetes.io/selected-node": node,
        "volume.kubernetes.io/storage-provisioner": "csi.tonnage.dev",
    }
    assert metadata["finalizers"] == ["kubernetes.io/pvc-protection"]
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": POD,
        "uid": pod["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert metadata["ownerReferences"] == [owner]
    assert claim["status"] == {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "4Gi"}}
    assert claim["spec"]["volumeName"] == f"pvc-{metadata['uid']}"


def test_capacity_of_the_nodes(cluster, pod) -> None:  # type: ignore[no-untyped-def]
    node = pod["spec"]["nodeName"]

    assert cluster.capacities() == {n: "26620Mi" if n == node else "30716Mi" for n in ("node-1", "node-2", "node-3")}


def test_describe(cluster, pod) -> None:  # type: ignore[no-untyped-def]
    assert "Type:          EphemeralVolume" in cluster.kubectl("describe", "pod", POD)
    described = cluster.kubectl("describe", "pvc", CLAIM)
    assert f"Used By:       {POD}" in described
    assert "Status:        Bound" in described
    assert "topology.tonnage.dev/node in" in cluster.kubectl("describe", "pv")
    assert "Maximum Volume Size:" in cluster.kubectl("describe", "csistoragecapacity", "-n", "tonnage-system")
    assert "Ready" in cluster.kubectl("describe", "node", "node-1")


def test_a_size_is_what_df_shows(cluster, pod) -> None:  # type: ignore[no-untyped-def]
    cluster.kubectl("apply", "-f", str(EXAMPLES / "pod-two-volumes.yaml"))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/two-volumes", "--timeout=300s")
    cluster.until("df was printed", lambda: "/scratch" in cluster.kubectl("logs", "two-volumes"))

    sizes = {line.split()[1]: int(line.split()[0]) for line in cluster.kubectl("logs", "two-volumes").splitlines()[1:]}

    gi = 1024**3
    assert 2 * gi <= sizes["/cache"] <= 2.05 * gi
    assert 1 * gi <= sizes["/scratch"] <= 1.05 * gi


def test_changing_objects(cluster, pod) -> None:  # type: ignore[no-untyped-def]
    version = cluster.get("pod", POD)["metadata"]["resourceVersion"]
    cluster.kubectl("apply", "-f", str(EXAMPLES / "pod-ephemeral.yaml"))  # sends the order of volumes, for the token's
    assert cluster.get("pod", POD)["metadata"]["resourceVersion"] == version
    cluster.kubectl("label", "pod", POD, "a=b")
    cluster.kubectl("annotate", "pod", POD, "x=y")
    cluster.kubectl("patch", "pod", POD, "-p", '{"metadata":{"labels":{"c":"d"}}}')
    cluster.kubectl("patch", "pod", POD, "--type=json", "-p", '[{"op":"remove","path":"/metadata/labels/a"}]')
    cluster.kubectl("replace", "-f", "-", stdin=cluster.kubectl("get", "pod", POD, "-o", "json"))
    cluster.kubectl("edit", "pod", POD, EDITOR='sed -i "s/c: d/c: e/"')

    found = cluster.get("pod", POD)["metadata"]
    assert found["labels"] == {"c": "e"}
    assert found["annotations"]["x"] == "y"


def test_create_commands_that_speak_protobuf(cluster) -> None:  # type: ignore[no-untyped-def]
    """kubectl's typed clients send protobuf."""
    for what in ("namespace made", "configmap made --from-literal=a=b", "quota made --hard=pods=2"):
        assert "created" in cluster.kubectl("create", *what.split())
    assert cluster.get("configmap", "made")["data"] == {"a": "b"}
    assert cluster.get("quota", "made")["spec"]["hard"] == {"pods": "2"}
    cluster.kubectl("delete", "namespace/made", "configmap/made", "quota/made", "--timeout=60s")


def test_watch_streams(cluster) -> None:  # type: ignore[no-untyped-def]
    command = [str(programs.kubectl()), "get", "pods", "-w", "--output-watch-events", "--no-headers"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=cluster.environment)
    try:
        cluster.kubectl("apply", "-f", str(EXAMPLES / "pod-ephemeral.yaml"))
        cluster.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=300s")
        cluster.kubectl("delete", "pod", POD, "--grace-period=1")
        seen = []
        assert watching.stdout is not None
        for line in watching.stdout:
            seen.append(line.split())
            if line.startswith("DELETED"):
                break
    finally:
        watching.kill()
        watching.wait()

    assert seen[0][:2] == ["ADDED", POD]
    assert any(words[3] == "Running" for words in seen)
    assert any(words[3] == "Terminating" for words in seen)


def test_logs(cluster) -> None:  # type: ignore[no-untyped-def]
    script = "for n in 1 2 3; do echo line $n; done; echo oops >&2; sleep 1000"
    manifest = f"""
apiVersion: v1
kind: Pod
metadata: {{name: talker}}
spec:
  containers: [{{name: main, image: any, command: [sh, -c, '{script}']}}]
"""
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/talker", "--timeout=300s")
    cluster.until("it has spoken", lambda: "oops" in cluster.kubectl("logs", "talker"))

    assert cluster.kubectl("logs", "talker").splitlines() == ["line 1", "line 2", "line 3", "oops"]
    assert cluster.kubectl("logs", "talker", "--tail=1") == "oops\n"
    assert cluster.kubectl("logs", "talker", "--since=1h").startswith("line 1")
    follow = subprocess.Popen(
        [str(programs.kubectl()), "logs", "-f", "talker"], stdout=subprocess.PIPE, text=True, env=cluster.environment
    )
    assert follow.stdout is not None
    assert follow.stdout.readline() == "line 1\n"
    cluster.kubectl("delete", "pod", "talker", "--grace-period=1")
    assert follow.wait(timeout=120) == 0
    follow.stdout.close()


def test_explain_and_discovery(cluster) -> None:  # type: ignore[no-untyped-def]
    assert "maximumVolumeSize" in cluster.kubectl("explain", "csistoragecapacity")
    assert "volumeClaimTemplate" in cluster.kubectl("explain", "pod.spec.volumes.ephemeral")
    assert "csistoragecapacities" in cluster.kubectl("api-resources")
    assert "storage.k8s.io/v1" in cluster.kubectl("api-versions")
    assert '"gitVersion"' in cluster.kubectl("get", "--raw", "/version")
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"


def test_bad_input_is_answered_as_kubernetes_does(cluster) -> None:  # type: ignore[no-untyped-def]
    def rejected(body: str) -> str:
        return str(cluster.kubectl("create", "-f", "-", stdin=body, fails=True))

    head = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: "
    claim = "{accessModes: [ReadWriteOnce], resources: {requests: {storage: %s}}}"
    assert 'unknown field "spec.acessModes"' in rejected(head + "{acessModes: []}")
    assert "must be greater than zero" in rejected(head + claim % "0")
    assert "must be greater than zero" in rejected(head + claim % '"-1Gi"')
    assert "quantit" in rejected(head + claim % "lots")
    wide = head + "{accessModes: [ReadWriteEverywhere], resources: {requests: {storage: 1Gi}}}"
    assert 'Unsupported value: "ReadWriteEverywhere"' in rejected(wide)
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i}]\n  volumes:\n"
    template = "{volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}"
    both = f"{pod}  - {{name: v, ephemeral: {template}}}\n  - {{name: w, persistentVolumeClaim: {{claimName: p-v}}}}"
    assert "must not reference a PVC that gets created for an ephemeral volume" in rejected(both)
    assert "Duplicate value" in rejected(
        f"{pod}  - {{name: v, ephemeral: {template}}}\n  - {{name: v, emptyDir: {{}}}}"
    )


def test_a_claim_that_is_somebody_elses_holds_the_pod_back(cluster) -> None:  # type: ignore[no-untyped-def]
    claim = f"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {CLAIM}}}\nspec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}"
    cluster.kubectl("create", "-f", "-", stdin=claim)
    cluster.kubectl("apply", "-f", str(EXAMPLES / "pod-ephemeral.yaml"))
    words = f"PVC default/{CLAIM} was not created for pod default/{POD} (pod is not owner)"

    cluster.until("the pod says so", lambda: words in cluster.kubectl("describe", "pod", POD))

    assert cluster.get("pod", POD)["status"]["phase"] == "Pending"
    cluster.kubectl("delete", "pod", POD, "--grace-period=0", "--force")
    assert cluster.get("pvc", CLAIM)["status"]["phase"] == "Pending"  # it was not ours to remove
    cluster.kubectl("delete", "pvc", CLAIM)


def test_quota_holds_for_claims_made_through_pods(cluster) -> None:  # type: ignore[no-untyped-def]
    cluster.kubectl("apply", "-f", str(EXAMPLES / "quota.yaml"))
    two = (EXAMPLES / "pod-ephemeral.yaml").read_text()
    for name in ("one", "two", "three"):
        cluster.kubectl("apply", "-n", "team-a", "-f", "-", stdin=two.replace(POD, name))

    cluster.kubectl("wait", "-n", "team-a", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=300s")
    cluster.until(
        "the third is rejected its claim",
        lambda: (
            "exceeded quota: storage, requested: requests.storage=4Gi, used: requests.storage=8Gi, limited: requests.storage=8Gi"
            in cluster.kubectl("describe", "pod", "-n", "team-a", "three")
        ),
    )
    cluster.kubectl("delete", "namespace", "team-a", "--timeout=300s")
    assert "NotFound" in cluster.kubectl("get", "namespace", "team-a", fails=True)


def test_data_outlives_the_pod_and_is_copied(cluster) -> None:  # type: ignore[no-untyped-def]
    manifest = str(EXAMPLES / "pod-persistent.yaml")
    for lines in (1, 2):
        cluster.kubectl("apply", "-f", manifest)
        cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/writer", "--timeout=300s")
        assert len(cluster.kubectl("logs", "writer").splitlines()) == lines
        written = cluster.kubectl("logs", "writer")
        cluster.kubectl("delete", "pod", "writer")
    cluster.kubectl("apply", "-f", str(EXAMPLES / "pod-copy.yaml"))
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/reader", "--timeout=300s")
    assert cluster.kubectl("logs", "reader") == written
    cluster.kubectl("delete", "pod", "reader")
    cluster.kubectl("delete", "pvc", "notes", "notes-copy", "--timeout=300s")
    cluster.until("the volume is gone", lambda: not cluster.get("pv")["items"])
