"""The real kubectl against the real HTTPS server: what people type on their first day."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage_box.apiserver.server.auth import ensure, write_kubeconfig
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store

pytestmark = pytest.mark.real
Kubectl = Callable[..., Awaitable[str]]

CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: scratch, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: csi.tonnage.dev
volumeBindingMode: WaitForFirstConsumer
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: demo}}
spec:
  automountServiceAccountToken: false
  containers:
  - {name: c, image: busybox, volumeMounts: [{name: data, mountPath: /data}]}
  volumes:
  - name: data
    ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 4Gi}}}}}
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""
QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: q}
spec: {hard: {requests.storage: 1536Mi, persistentvolumeclaims: 5}}
"""


@pytest.fixture
async def kubectl(tmp_path: Path, kubectl_program: str) -> AsyncIterator[Kubectl]:
    """kubectl(*arguments, text=stdin, fails=False) -> its output (its complaint, where it is to fail)."""
    credentials = ensure(tmp_path / "credentials", RealClock())
    server = ApiServer(Store(extractor()), credentials=credentials)
    await server.start()
    write_kubeconfig(tmp_path / "kubeconfig", await server.listen(), credentials)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
    pipe = asyncio.subprocess.PIPE

    async def run(*arguments: str, text: str = "", fails: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            kubectl_program, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
        out, complaint = await process.communicate(text.encode())
        assert (process.returncode != 0) == fails, complaint.decode() or out.decode()
        return (complaint if fails else out).decode()

    yield run
    await server.stop()


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


async def test_apply_twice_changes_nothing_the_second_time(kubectl: Kubectl) -> None:
    everything = "---".join((CLASS, POD, CLAIM))
    assert await kubectl("apply", "-f", "-", text=everything) == (
        "storageclass.storage.k8s.io/scratch created\npod/p created\npersistentvolumeclaim/c created\n"
    )
    assert await kubectl("apply", "-f", "-", text=everything) == (
        "storageclass.storage.k8s.io/scratch unchanged\npod/p unchanged\npersistentvolumeclaim/c unchanged\n"
    )
    changed = POD.replace("app: demo", "app: other, new: label")
    assert await kubectl("apply", "-f", "-", text=changed) == "pod/p configured\n"
    assert json.loads(await kubectl("get", "pod", "p", "-o", "json"))["metadata"]["labels"] == {
        "app": "other",
        "new": "label",
    }


async def test_get_prints_the_columns_of_kubernetes(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", text="---".join((CLASS, POD, CLAIM)))
    assert lines(await kubectl("get", "pods"))[0] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert lines(await kubectl("get", "pods"))[1][:4] == ["p", "0/1", "Pending", "0"]
    head = "NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES"
    assert " ".join(lines(await kubectl("get", "pods", "-o", "wide"))[0]) == head
    head = "NAME STATUS VOLUME CAPACITY ACCESS MODES STORAGECLASS VOLUMEATTRIBUTESCLASS AGE"
    assert " ".join(lines(await kubectl("get", "pvc"))[0]) == head
    assert lines(await kubectl("get", "sc"))[1][:3] == ["scratch", "(default)", "csi.tonnage.dev"]


async def test_api_resources_and_versions(kubectl: Kubectl) -> None:
    rows = {row[0]: row for row in lines(await kubectl("api-resources"))}
    assert rows["csistoragecapacities"] == ["csistoragecapacities", "storage.k8s.io/v1", "true", "CSIStorageCapacity"]
    assert rows["persistentvolumeclaims"][1] == "pvc"
    assert "storage.k8s.io/v1" in await kubectl("api-versions")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("csistoragecapacity", "maximumVolumeSize\t<Quantity>", id="capacity"),
        pytest.param("pod.spec.volumes.ephemeral", "volumeClaimTemplate\t<PersistentVolumeClaimTemplate>", id="deep"),
        pytest.param("pvc.spec.resources", "requests\t<map[string]Quantity>", id="map"),
        pytest.param("sc", "provisioner\t<string> -required-", id="required"),
    ],
)
async def test_explain(kubectl: Kubectl, what: str, said: str) -> None:
    text = await kubectl("explain", what)
    assert said in text
    assert "<empty>" not in text


async def test_strict_validation_names_the_field(kubectl: Kubectl) -> None:
    wrong = POD.replace("mountPath", "mountPaht")
    complaint = await kubectl("create", "--validate=strict", "-f", "-", text=wrong, fails=True)
    assert 'strict decoding error: unknown field "spec.containers[0].volumeMounts[0].mountPaht"' in complaint


async def test_an_invalid_pod_is_told_why(kubectl: Kubectl) -> None:
    wrong = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers: [{name: c, image: i}]\n  volumes: "
    wrong += "[{name: v, ephemeral: {}}]\n"
    assert await kubectl("create", "-f", "-", text=wrong, fails=True) == (
        'The Pod "x" is invalid: spec.volumes[0].ephemeral.volumeClaimTemplate: Required value\n'
    )


async def test_lists_as_get_prints_them_are_taken_back(kubectl: Kubectl) -> None:
    """kubectl validates files of kind List by itself, with the schemas that it asks for as protobuf."""
    await kubectl("apply", "-f", "-", text="---".join((POD, CLAIM, QUOTA)))
    listed = await kubectl("get", "pod,pvc,quota", "-o", "yaml")
    assert "kind: List" in listed
    assert len((await kubectl("apply", "-f", "-", text=listed)).splitlines()) == 3
    await kubectl("delete", "--wait=false", "-f", "-", text=listed)
    wrong = await kubectl("create", "-f", "-", text=listed.replace("dnsPolicy", "dnsPolitics"), fails=True)
    assert 'unknown field "dnsPolitics" in io.k8s.api.core.v1.PodSpec' in wrong


async def test_changing_things(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", text=POD)
    assert await kubectl("label", "pod", "p", "a=b") == "pod/p labeled\n"
    assert await kubectl("annotate", "pod", "p", "a=b") == "pod/p annotated\n"
    assert await kubectl("patch", "pod", "p", "-p", '{"metadata":{"labels":{"c":"d"}}}') == "pod/p patched\n"
    image = '{"spec":{"containers":[{"name":"c","image":"other"}]}}'
    assert await kubectl("patch", "pod", "p", "-p", image) == "pod/p patched\n"
    pod: dict[str, Any] = json.loads(await kubectl("get", "pod", "p", "-o", "json"))
    assert (pod["metadata"]["labels"], pod["spec"]["containers"][0]["image"]) == (
        {"app": "demo", "a": "b", "c": "d"},
        "other",
    )
    pod["metadata"]["labels"] = {"only": "this"}
    assert await kubectl("replace", "-f", "-", text=json.dumps(pod)) == "pod/p replaced\n"
    assert "only=this" in await kubectl("get", "pods", "--show-labels")


async def test_quota_as_it_is_described(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", text=QUOTA)
    await kubectl("apply", "-f", "-", text=CLAIM)
    assert ["requests.storage", "1Gi", "1536Mi"] in lines(await kubectl("describe", "quota", "q"))
    complaint = await kubectl("create", "-f", "-", text=CLAIM.replace("name: c", "name: d"), fails=True)
    assert complaint.endswith(
        'persistentvolumeclaims "d" is forbidden: exceeded quota: q, requested: requests.storage=1Gi, '
        "used: requests.storage=1Gi, limited: requests.storage=1536Mi\n"
    )


async def test_describe(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", text="---".join((CLASS, POD, CLAIM)))
    assert "EphemeralVolume" in await kubectl("describe", "pod", "p")
    assert "kubernetes.io/pvc-protection" in await kubectl("describe", "pvc", "c")
    assert "WaitForFirstConsumer" in await kubectl("describe", "sc", "scratch")


async def test_json_patch_replaces_a_member_that_is_not_there(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", text=CLAIM)
    patch = '[{"op": "replace", "path": "/metadata/annotations/a~1b", "value": "c"}]'
    await kubectl("patch", "pvc", "c", "--type=json", "-p", patch)
    notes = json.loads(await kubectl("get", "pvc", "c", "-o", "json"))["metadata"]["annotations"]
    assert notes["a/b"] == "c"
    told = await kubectl("patch", "pvc", "c", "--type=json", "-p", patch.replace("/metadata", "/nothing"), fails=True)
    assert "is invalid" in told


async def test_a_data_source_of_any_kind(kubectl: Kubectl) -> None:
    foreign = '{"apiGroup": "hello.example.com", "kind": "Hello", "name": "h"}'
    claim = CLAIM.replace("spec: {", "spec: {dataSourceRef: " + foreign + ", ")
    await kubectl("apply", "-f", "-", text=claim)
    spec = json.loads(await kubectl("get", "pvc", "c", "-o", "json"))["spec"]
    assert spec["dataSource"] == spec["dataSourceRef"] == json.loads(foreign)
    assert await kubectl("apply", "-f", "-", text=claim) == "persistentvolumeclaim/c unchanged\n"

    alone = CLAIM.replace("name: c", "name: d").replace("spec: {", "spec: {dataSource: " + foreign + ", ")
    await kubectl("apply", "-f", "-", text=alone)
    assert (
        not {"dataSource", "dataSourceRef"} & json.loads(await kubectl("get", "pvc", "d", "-o", "json"))["spec"].keys()
    )


STORED = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec: {maxReplicas: 3, scaleTargetRef: {kind: Deployment, name: web}}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: vm}
handler: vm
"""


async def test_kinds_without_effect_are_stored_printed_and_described(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", text=STORED)
    assert "service/web unchanged" in await kubectl("apply", "-f", "-", text=STORED)
    rows = lines(await kubectl("get", "svc"))
    assert rows[0] == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"]
    assert rows[1][:2] == ["web", "ClusterIP"]
    assert lines(await kubectl("get", "ing"))[0] == ["NAME", "CLASS", "HOSTS", "ADDRESS", "PORTS", "AGE"]
    head = ["NAME", "REFERENCE", "TARGETS", "MINPODS", "MAXPODS", "REPLICAS", "AGE"]
    assert lines(await kubectl("get", "hpa"))[0] == lines(await kubectl("get", "hpa.v1.autoscaling"))[0] == head
    assert "Internal Traffic Policy:  Cluster" in await kubectl("describe", "service", "web")
    assert "<unknown> / 80%" in await kubectl("describe", "hpa", "web")
    assert "Handler:      vm" in await kubectl("describe", "runtimeclass", "vm")


async def test_every_kind_is_explained(kubectl: Kubectl) -> None:
    shown = lines(await kubectl("api-resources", "--verbs=get", "--no-headers"))
    kinds = [(row[0], next(word for word in row if word == "v1" or "/v" in word)) for row in shown]
    assert len(kinds) > 30
    for plural, version in kinds:
        said = await kubectl("explain", plural, "--recursive", f"--api-version={version}")
        assert "FIELDS:" in said, plural
        assert "<empty>" not in said, plural


@pytest.mark.parametrize("path", ["/", "/api", "/apis", "/version", "/livez?verbose", "/readyz/ping", "/openapi/v3"])
async def test_raw_paths(kubectl: Kubectl, path: str) -> None:
    assert await kubectl("get", "--raw", path)


SNAPSHOT = """
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: tonnage}
driver: csi.tonnage.dev
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: monday}
spec: {source: {persistentVolumeClaimName: data}}
"""


async def test_snapshots_are_kinds_as_others(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", text=SNAPSHOT)
    assert await kubectl("apply", "-f", "-", text=SNAPSHOT) == (
        "volumesnapshotclass.snapshot.storage.k8s.io/tonnage unchanged\n"
        "volumesnapshot.snapshot.storage.k8s.io/monday unchanged\n"
    )
    head = ["NAME", "READYTOUSE", "SOURCEPVC", "SOURCESNAPSHOTCONTENT", "RESTORESIZE", "SNAPSHOTCLASS"]
    assert lines(await kubectl("get", "vs", "-o", "wide"))[0] == [*head, "SNAPSHOTCONTENT", "CREATIONTIME", "AGE"]
    assert lines(await kubectl("get", "vsclass"))[1][:3] == ["tonnage", "csi.tonnage.dev", "Delete"]
    assert await kubectl("get", "vscs", "-o", "name") == ""
    both = SNAPSHOT.replace("{persistentVolumeClaimName: data}", "{}").replace("monday", "tuesday")
    said = await kubectl("apply", "-f", "-", text=both, fails=True)
    assert "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set" in said
    await kubectl("delete", "vs", "monday", "--wait=false")
    assert "volumesnapshot-bound-protection" in await kubectl("get", "vs", "monday", "-o", "yaml")
