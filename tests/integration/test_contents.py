"""Volumes that begin with a content, in the box: a pod reads what a web server, a folder and an image gave."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.clusters import Cluster
from tests.unit.storage.content.server import Files, served

from tonnage.storage.images.store import ImageStore
from tonnage_box.testing.image_archive import LayerTar, layout, write

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
ARCHIVE = gzip.compress(LayerTar().folder("d").add("d/greeting", b"hello from afar\n").data(), mtime=0)


@pytest.fixture(scope="module")
def files() -> Iterator[Files]:
    with served(Files({"/site.tar.gz": ARCHIVE, "/buk/p/a/b": b"from a bucket\n"}, keys=None)) as found:
        yield found


@pytest.fixture(scope="module")
def private() -> Iterator[Files]:
    """A server of buckets that wants signatures."""
    with served(Files({"/buk/k": b"for us only\n"}, keys=("key", "s3cret"))) as found:
        yield found


@pytest.fixture(scope="module")
def box(
    make_cluster: Callable[..., Cluster], files: Files, private: Files, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One node that may fetch from the server, and whose folder and image volumes may begin with."""
    folder = tmp_path_factory.mktemp("given").resolve()
    (folder / "models").mkdir()
    (folder / "models" / "m").write_text("from a folder\n")
    store = folder / "store"
    layers = [LayerTar().add("i", b"lower\n").data(), LayerTar().add("i", b"from an image\n").data()]
    ImageStore(store).load(write(folder / "layout", layout(layers, name="app:1")))
    cluster = make_cluster(
        "--nodes", "1", "--pool", "image,name=scratch,size=1Gi,sparse=yes",
        "--fetch", f"localhost:{files.port}", "--fetch", f"localhost:{private.port}", "--source", str(folder / "models"), "--images", str(store),
    )  # fmt: skip
    cluster.up()
    yield cluster
    cluster.down("--purge")


def content(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "tonnage.dev/v1", "kind": "Content", "metadata": {"name": name}, "spec": spec}


def claim_and_pod(name: str, command: str, storage_class: str = "tonnage-scratch", **spec: Any) -> list[dict[str, Any]]:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "64Mi"}},
            **spec,
        },
    }
    main = {
        "name": "main",
        "image": "x",
        "command": ["sh", "-c", command],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [main],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    }
    return [claim, pod]


def apply(box: Cluster, *objects: dict[str, Any]) -> None:
    box.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def from_content(name: str) -> dict[str, Any]:
    return {"dataSourceRef": {"apiGroup": "tonnage.dev", "kind": "Content", "name": name}}


def log_of(box: Cluster, pod: str) -> str:
    box.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{pod}", "--timeout=120s")
    return box.kubectl("logs", pod)


def test_a_pod_reads_what_its_volume_began_with(box: Cluster, files: Files) -> None:
    digest = hashlib.sha256(ARCHIVE).hexdigest()
    specs = {
        "archive": {"url": {"url": f"{files.url}/site.tar.gz", "sha256": digest, "unpack": "tar.gz"}},
        "bucket": {"s3": {"endpoint": files.url, "bucket": "buk", "prefix": "p/"}},
        "folder": {"folder": {"name": "models"}},
        "image": {"image": {"reference": "app:1"}},
    }
    paths = {"archive": "d/greeting", "bucket": "a/b", "folder": "m", "image": "i"}
    texts = {
        "archive": "hello from afar",
        "bucket": "from a bucket",
        "folder": "from a folder",
        "image": "from an image",
    }
    for name, spec in specs.items():
        command = f"cat /data/{paths[name]} && ! touch /data/new 2>/dev/null"
        apply(box, content(name, spec), *claim_and_pod(name, command, **from_content(name)))
    for name, text in texts.items():
        assert log_of(box, name).strip() == text
    shown = box.kubectl("get", "contents")
    assert shown.split()[:6] == ["NAME", "IMAGE", "URL", "BUCKET", "FOLDER", "AGE"]


def test_a_class_fills_its_volumes(box: Cluster) -> None:
    apply(
        box,
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "models"},
            "provisioner": "csi.tonnage.dev",
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": {"source": "folder:models"},
        },
        *claim_and_pod("by-class", "cat /data/m", storage_class="models"),
    )
    assert log_of(box, "by-class").strip() == "from a folder"


def test_the_secret_of_the_class_opens_a_bucket(box: Cluster, private: Files) -> None:
    secret = {"accessKey": "key", "secretKey": "s3cret", "hosts": private.url}
    names = {"name": "s3", "namespace": "default"}
    apply(
        box,
        {"apiVersion": "v1", "kind": "Secret", "metadata": names, "stringData": secret},
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "private"},
            "provisioner": "csi.tonnage.dev",
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": {f"csi.storage.k8s.io/provisioner-secret-{key}": value for key, value in names.items()},
        },
        content("key", {"s3": {"endpoint": private.url, "bucket": "buk", "key": "k"}}),
        *claim_and_pod("key", "cat /data/k", storage_class="private", **from_content("key")),
        *claim_and_pod("no-key", "cat /data/k", **from_content("key")),
    )
    assert log_of(box, "key").strip() == "for us only"
    assert "403 Forbidden" in _event(box, "no-key", "ProvisioningFailed")
    assert "s3cret" not in box.kubectl("get", "events", "-o", "json")


def test_a_wrong_digest_is_told_on_the_claim(box: Cluster, files: Files) -> None:
    spec = {"url": {"url": f"{files.url}/site.tar.gz", "sha256": "0" * 64}}
    apply(box, content("wrong", spec), *claim_and_pod("wrong", "true", **from_content("wrong")))
    text = _event(box, "wrong", "ProvisioningFailed")
    assert hashlib.sha256(ARCHIVE).hexdigest() in text
    assert "0" * 64 in text
    assert not [v for v in box.get("pv")["items"] if v["spec"]["claimRef"]["name"] == "wrong"]


def _event(box: Cluster, name: str, reason: str) -> str:
    """The message of an Event on a claim, once there is one."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = [
            event["message"]
            for event in box.get("events")["items"]
            if (event["involvedObject"]["name"], event["reason"]) == (name, reason)
        ]
        return bool(found)

    box.until(f"Event {reason} on {name}", is_there)
    return found[0]


def test_a_content_that_makes_no_sense_is_rejected(box: Cluster) -> None:
    for spec, words in (
        ({}, "exactly one of image, url, s3 and folder must be set"),
        ({"url": {"url": "ftp://x", "sha256": "0" * 64}}, "want http://"),
        ({"url": {"url": "http://x", "sha256": "0" * 64, "secretRef": {"name": "s"}}}, "secretRef"),
    ):
        with pytest.raises(AssertionError, match=words):
            apply(box, content("bad", spec))


def test_the_example_is_taken(box: Cluster) -> None:
    """Its host is not allowed here, which its claim says."""
    box.kubectl("apply", "-f", str(ROOT / "examples" / "content.yaml"))
    assert "host files.example.com:443 is not among those" in _event(box, "site", "ProvisioningFailed")
    kinds = [found["kind"] for found in yaml.safe_load_all((ROOT / "examples" / "content.yaml").read_text())]
    assert kinds == ["Content", "PersistentVolumeClaim", "Pod"]
