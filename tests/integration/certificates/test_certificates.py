"""Certificates in the box by kubectl: cert-manager/csi-driver's example Deployment, unchanged but for its image."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from tests.clusters import Cluster
from tests.programs import need

pytestmark = pytest.mark.real

NAMESPACE = "sandbox"
EXAMPLE = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: my-csi-app
  namespace: sandbox
  labels:
    app: my-csi-app
spec:
  replicas: 5
  selector:
    matchLabels:
      app: my-csi-app
  template:
    metadata:
      labels:
        app: my-csi-app
    spec:
      containers:
        - name: my-frontend
          image: busybox
          volumeMounts:
          - mountPath: "/tls"
            name: tls
          command: [ "sleep", "1000000" ]
      volumes:
        - name: tls
          csi:
            driver: csi.cert-manager.io
            readOnly: true
            volumeAttributes:
                  csi.cert-manager.io/issuer-name: ca-issuer
                  csi.cert-manager.io/dns-names: my-service.sandbox.svc.cluster.local
                  csi.cert-manager.io/uri-sans: spiffe://my-service.sandbox.cluster.local
                  csi.cert-manager.io/disable-auto-renew: "true"
"""


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = make_cluster(
        "--nodes", "1", "--pool", "fake,size=1Gi", "--inline", "cert",
        "--compat", "cert-manager",
    )  # fmt: skip
    cluster.up()
    apply(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield cluster
    cluster.down("--purge")


def apply(box: Cluster, body: dict[str, Any]) -> None:
    box.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def read(box: Cluster, pod: str, file: str) -> bytes:
    return box.kubectl("exec", "-n", NAMESPACE, pod, "--", "cat", f"/tls/{file}").encode()


def pods(box: Cluster) -> list[dict[str, Any]]:
    found = json.loads(box.kubectl("get", "pods", "-n", NAMESPACE, "-l", "app=my-csi-app", "-o", "json"))["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def test_five_replicas_have_five_certificates(box: Cluster, tmp_path: Path) -> None:
    need("openssl")
    apply(box, yaml.safe_load(EXAMPLE))
    box.kubectl("rollout", "status", "-n", NAMESPACE, "deployment/my-csi-app", "--timeout=120s")
    names = [pod["metadata"]["name"] for pod in pods(box)]
    assert len(names) == 5
    keys, serials = set(), set()
    for name in names:
        for file in ("ca.crt", "tls.crt", "tls.key"):
            (tmp_path / file).write_bytes(read(box, name, file))
        verify = ["openssl", "verify", "-CAfile", str(tmp_path / "ca.crt"), str(tmp_path / "tls.crt")]
        assert subprocess.run(verify, capture_output=True, check=True).stdout.endswith(b"OK\n")
        certificate = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(one.value) for one in found] == [
            "my-service.sandbox.svc.cluster.local",
            "spiffe://my-service.sandbox.cluster.local",
        ]
        assert b"BEGIN RSA PRIVATE KEY" in (tmp_path / "tls.key").read_bytes()
        keys.add((tmp_path / "tls.key").read_bytes())
        serials.add(certificate.serial_number)
    assert len(keys) == len(serials) == 5
    box.kubectl("delete", "deployment", "-n", NAMESPACE, "my-csi-app")


def own(name: str, **attributes: str) -> dict[str, Any]:
    """A pod with a certificate of its own under our driver's name."""
    given = {"issuer-name": "internal", **{key.replace("_", "-"): value for key, value in attributes.items()}}
    volume = {"name": "tls", "csi": {"driver": "cert.tonnage.dev", "readOnly": True, "volumeAttributes": given}}
    mounts = [{"name": "tls", "mountPath": "/tls"}]
    main = {"name": "c", "image": "busybox", "command": ["sleep", "1000"], "volumeMounts": mounts}
    spec = {
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"fsGroup": 2000},
        "containers": [main],
        "volumes": [volume],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def test_the_pods_own_uid_its_group_and_a_key_store(box: Cluster) -> None:
    uri = "spiffe://cluster.local/ns/${POD_NAMESPACE}/sa/${SERVICE_ACCOUNT_NAME}/pod/${POD_UID}"
    apply(box, own("own", uri_sans=uri, pkcs12_enable="true", pkcs12_filename="crt.p12", pkcs12_password="secret"))
    box.kubectl("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/own", "--timeout=60s")
    uid = box.kubectl("get", "pod", "-n", NAMESPACE, "own", "-o", "jsonpath={.metadata.uid}")
    certificate = x509.load_pem_x509_certificate(read(box, "own", "tls.crt"))
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in found] == [f"spiffe://cluster.local/ns/sandbox/sa/default/pod/{uid}"]
    stat = box.kubectl("exec", "-n", NAMESPACE, "own", "--", "stat", "-Lc", "%A %u %g", "/tls/tls.key")
    assert stat.split() == ["-r--r-----", "0", "2000"]
    command = "openssl pkcs12 -in /tls/crt.p12 -passin pass:secret -nodes"
    shown = box.kubectl("exec", "-n", NAMESPACE, "own", "--", "sh", "-c", command)
    assert shown.count("BEGIN CERTIFICATE") == 2
    events = box.kubectl("get", "events", "-A", "-o", "json")
    assert "pass:secret" not in events
    assert '"secret"' not in events
    box.kubectl("delete", "pod", "-n", NAMESPACE, "own")


def test_a_pod_that_starts_before_its_certificate_gets_one_for_its_address(box: Cluster) -> None:
    apply(box, own("early", wait="false", after="pod-ip", ip_sans="$POD_IP"))
    box.kubectl("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/early", "--timeout=60s")
    command = "until test -e /tls/tls.crt; do sleep 0.1; done; ls /tls; cat /tls/tls.crt"
    shown = box.kubectl("exec", "-n", NAMESPACE, "early", "--", "timeout", "100", "sh", "-c", command)
    assert shown.split()[:3] == ["ca.crt", "tls.crt", "tls.key"]
    address = box.kubectl("get", "pod", "-n", NAMESPACE, "early", "-o", "jsonpath={.status.podIP}")
    certificate = x509.load_pem_x509_certificate(shown[shown.index("-----BEGIN") :].encode())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in found] == [address]
    box.kubectl("delete", "pod", "-n", NAMESPACE, "early")


def test_a_rejection_is_an_event_and_the_pod_waits(box: Cluster) -> None:
    apply(box, own("rejected", dns_names="kubernetes.default.svc"))
    for _ in range(600):
        shown = box.kubectl("get", "events", "-n", NAMESPACE, "-o", "jsonpath={.items[*].message}")
        if 'issuer internal: not allowed: dns "kubernetes.default.svc"' in shown:
            break
        time.sleep(0.1)
    else:
        pytest.fail(shown)
    assert box.kubectl("get", "pod", "-n", NAMESPACE, "rejected", "-o", "jsonpath={.status.phase}") == "Pending"
    box.kubectl("delete", "pod", "-n", NAMESPACE, "rejected")


def test_a_pod_gets_certificate_and_roots_without_a_csi_driver(box: Cluster) -> None:
    certificate = {"signerName": "tonnage.dev/box", "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem"}
    bundle = {"signerName": "tonnage.dev/box", "labelSelector": {}, "path": "ca.crt"}
    pod = own("projected")
    sources = [{"podCertificate": certificate}, {"clusterTrustBundle": bundle}]
    pod["spec"]["volumes"] = [{"name": "tls", "projected": {"sources": sources}}]
    apply(box, pod)
    box.kubectl("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/projected", "--timeout=60s")

    def run(command: str) -> str:
        return box.kubectl("exec", "-n", NAMESPACE, "projected", "--", "sh", "-c", command)

    assert run("openssl verify -CAfile /tls/ca.crt /tls/bundle.pem").endswith("OK\n")
    assert run("openssl pkey -in /tls/bundle.pem -pubout") == run("openssl x509 -in /tls/bundle.pem -pubkey -noout")
    found = x509.load_pem_x509_certificate(run("openssl x509 -in /tls/bundle.pem").encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in names] == [f"spiffe://cluster.local/ns/{NAMESPACE}/sa/default"]
    assert run("stat -fc %T /tls").strip() == "tmpfs"
    box.kubectl("delete", "pod", "-n", NAMESPACE, "projected")
    get = ("get", "podcertificaterequests", "-n", NAMESPACE, "-o", "name")
    box.until("the request goes with its pod", lambda: box.kubectl(*get).strip() == "")
