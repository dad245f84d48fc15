"""cert-manager's CertificateRequests in the box: the example Deployment unchanged, an issuer that is away, and one that denies.

After that, no private key and no password is in any log, record, Event or object, and none is on the disk.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from tests.clusters import Cluster
from tests.integration.certificates.cert_manager import DEFINITION, KIND, FakeIssuer
from tests.integration.certificates.test_certificates import EXAMPLE, NAMESPACE, apply, pods, read
from tests.programs import need

from tonnage.csi.inline.cert.issuers.remote import fnv_word

pytestmark = pytest.mark.real
PASSWORD = "correct-horse-battery"


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = make_cluster(
        "--nodes", "1", "--pool", "fake,size=1Gi",
        "--inline", "cert,name=csi.cert-manager.io,issuers=ca-issuer=cert-manager,patience=3",
    )  # fmt: skip
    cluster.up()
    apply(cluster, DEFINITION)
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=60s")
    for name in (NAMESPACE, "denied"):
        apply(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield cluster
    cluster.down("--purge")


@pytest.fixture(scope="module")
def issuer(box: Cluster) -> FakeIssuer:
    return FakeIssuer(box)


def requests(box: Cluster, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = box.get(KIND, "-n", namespace)["items"]
    return found


def messages(box: Cluster, namespace: str) -> str:
    return box.kubectl("get", "events", "-n", namespace, "-o", "jsonpath={.items[*].message}")


def test_pods_wait_for_an_issuer_that_is_away_and_say_so(box: Cluster) -> None:
    apply(box, yaml.safe_load(EXAMPLE))
    box.until("five requests", lambda: len(requests(box)) == 5)
    said = "issuer ca-issuer: request sandbox/"
    box.until("the reason is an Event", lambda: said in messages(box, NAMESPACE), seconds=120)
    assert "waiting: no answer yet" in messages(box, NAMESPACE)
    assert {pod["status"]["phase"] for pod in pods(box)} == {"Pending"}


def test_five_replicas_have_five_certificates_of_the_requests_they_made_before(
    box: Cluster, issuer: FakeIssuer, tmp_path: Path
) -> None:
    need("openssl")
    before = {one["metadata"]["name"] for one in requests(box)}
    with issuer:
        box.kubectl("rollout", "status", "-n", NAMESPACE, "deployment/my-csi-app", "--timeout=240s")
    assert {one["metadata"]["name"] for one in requests(box)} == before, "nobody asked twice"
    keys = set()
    (tmp_path / "ca.crt").write_bytes(issuer.root)
    owners = {one["metadata"]["ownerReferences"][0]["uid"]: one for one in requests(box)}
    for pod in pods(box):
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        assert read(box, name, "ca.crt") == issuer.root
        (tmp_path / "tls.crt").write_bytes(read(box, name, "tls.crt"))
        verify = ["openssl", "verify", "-CAfile", str(tmp_path / "ca.crt"), str(tmp_path / "tls.crt")]
        assert subprocess.run(verify, capture_output=True, check=True).stdout.endswith(b"OK\n")
        key = serialization.load_pem_private_key(read(box, name, "tls.key"), None).public_key()
        certificate = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
        assert certificate.public_key() == key
        keys.add(read(box, name, "tls.key"))
        request = owners[uid]
        assert request["metadata"]["labels"]["csi.cert-manager.io/node-id-hash"] == fnv_word(pod["spec"]["nodeName"])
        spec = request["spec"]
        assert spec["issuerRef"] == {"name": "ca-issuer", "kind": "Issuer", "group": "cert-manager.io"}
        assert (spec["duration"], spec["usages"]) == ("7776000s", ["digital signature", "key encipherment"])
        assert not spec.get("isCA")
    assert len(keys) == 5


def test_a_denied_request_is_not_repeated(box: Cluster) -> None:
    body = yaml.safe_load(EXAMPLE)["spec"]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "rejected", "namespace": "denied"}, "spec": body}
    with FakeIssuer(box) as issuer:
        reason = {"type": "Denied", "status": "True", "reason": "Policy", "message": "not in this namespace"}
        issuer.verdicts["denied"] = reason
        apply(box, pod)
        said = "issuer ca-issuer: denied: Policy: not in this namespace"
        box.until("the rejection is an Event", lambda: said in messages(box, "denied"))
        repeated = "asking again after an hour"
        box.until("the kubelet calls again", lambda: repeated in messages(box, "denied"), seconds=120)
    assert len(requests(box, "denied")) == 1
    box.kubectl("delete", "pod", "-n", "denied", "rejected", "--wait=false")


def test_no_key_and_no_password_is_anywhere_but_in_the_volume(box: Cluster) -> None:
    body = yaml.safe_load(EXAMPLE)["spec"]["template"]["spec"]
    prefix = "csi.cert-manager.io"
    body["volumes"][0]["csi"]["nodePublishSecretRef"] = {"name": "password"}
    body["volumes"][0]["csi"]["volumeAttributes"][f"{prefix}/pkcs12-enable"] = "true"
    secret = {"metadata": {"name": "password", "namespace": NAMESPACE}, "stringData": {"pkcs12-password": PASSWORD}}
    apply(box, {"apiVersion": "v1", "kind": "Secret", **secret})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "keystore", "namespace": NAMESPACE}, "spec": body}
    with FakeIssuer(box):
        apply(box, pod)
        box.kubectl("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/keystore", "--timeout=120s")
    names = ["keystore", *(one["metadata"]["name"] for one in pods(box))]
    secrets = {PASSWORD.encode()}
    for name in names:
        lines = read(box, name, "tls.key").splitlines()
        secrets |= {lines[1], lines[len(lines) // 2]}
    kinds = "pods,events,certificaterequests,csinodes,csidrivers,nodes,configmaps,volumeattachments"
    objects = box.kubectl("get", kinds, "-A", "-o", "json").encode()
    assert b"keystore" in objects
    assert [one for one in secrets if one in objects] == []
    found = [path for path in files(box.data) if holds(path, secrets - {PASSWORD.encode()})]
    assert found == []
    logs = [path for path in files(box.data) if path.suffix in (".log", ".json") or "log" in path.name]
    assert logs
    assert [path for path in logs if holds(path, secrets)] == []


def files(folder: Path) -> Iterator[Path]:
    """Regular files below a folder that are on its disk: neither in memory nor on a mount of a pod."""
    disk = folder.stat().st_dev
    for at, below, names in os.walk(folder):
        below[:] = [name for name in below if (Path(at) / name).lstat().st_dev == disk]
        for name in names:
            path = Path(at) / name
            if path.is_file() and not path.is_symlink() and path.lstat().st_dev == disk:
                yield path


def holds(path: Path, texts: set[bytes]) -> bool:
    data = path.read_bytes()
    return any(text in data or json.dumps(text.decode()).encode() in data for text in texts)
