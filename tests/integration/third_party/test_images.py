"""Images in a box, with kubectl: load, run, write, remove, and a restart of the box."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import verb
from tests.programs import find, needs

from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = [
    pytest.mark.real,
    needs("busybox"),
]
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "example/web:1", "args": ["cat /hello; id -u; exec sleep 1000"]}],
    },
}

POPULATED = """
apiVersion: v1
kind: Pod
metadata:
  name: nginx
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: nginx
    image: nginx:1.16-alpine
    ports:
    - containerPort: 80
    volumeMounts:
    - name: data
      mountPath: /usr/share/nginx/html
  volumes:
  - name: data
    image:
      reference: kfox1111/misc:test
"""


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One node, with an image that was loaded from a folder at its start."""
    folder = tmp_path_factory.mktemp("images")
    layers = [made.busybox(str(find("busybox"))), LayerTar().add("hello", b"hello\n", mode=0o644).data()]
    files = made.layout(layers, name="example/web:1", Entrypoint=["/bin/sh", "-c"], User="web")
    (folder / "web.tar").write_bytes(made.archive(files))
    box = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=1Gi,sparse=yes", "--images", str(folder))
    box.up()
    yield box
    box.down("--purge")


def _tonnage(box: Any, *arguments: str) -> str:
    ended = verb("images", *arguments, "--data", str(box.data))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _layers(box: Any) -> list[Path]:
    return list((box.data / "images/layers").iterdir())


def test_the_life_of_an_image(box: Any) -> None:
    (image,) = json.loads(_tonnage(box, "list", "-o", "json"))["images"]
    assert image["name"] == "docker.io/example/web:1"
    box.kubectl("apply", "-f", "-", stdin=json.dumps(POD))
    box.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=300s")
    box.until("the log", lambda: box.kubectl("logs", "web") == "hello\n33\n")
    status = box.get("pod", "web")["status"]["containerStatuses"][0]
    assert status["imageID"] == f"docker.io/example/web@{image['digest']}"
    assert "Pulled" in box.kubectl("get", "events")

    box.down()
    box.up()
    box.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=300s")
    _tonnage(box, "rm", "example/web:1")
    assert len(_layers(box)) == 2  # the container has them
    box.kubectl("delete", "pod", "web", "--timeout=300s")
    box.until("the pod's folder goes", lambda: not list((box.data / "nodes").glob("*/kubelet/pods/*")))
    one = box.data.parent / "one"
    made.write(one, made.layout([LayerTar().add("a").data()], name="one:1"))
    _tonnage(box, "load", str(one))
    assert len(_layers(box)) == 1


def test_the_walk_through_of_the_image_populator(box: Any, tmp_path: Path) -> None:
    """Its images and its pod, with an image volume in place of its CSI driver."""
    nginx = made.layout(
        [made.busybox(str(find("busybox")))], name="nginx:1.16-alpine", Cmd=["/bin/sh", "-c", "sleep 1000"]
    )
    data = made.layout([LayerTar().add("test", b"testing\n", mode=0o644).data()], name="kfox1111/misc:test")
    for number, files in enumerate((nginx, data)):
        (tmp_path / f"{number}.tar").write_bytes(made.archive(files))
    _tonnage(box, "load", str(tmp_path))
    box.kubectl("create", "-f", "-", stdin=POPULATED)
    box.kubectl("wait", "--for=condition=Ready", "pod/nginx", "--timeout=300s")
    assert box.kubectl("exec", "nginx", "--", "cat", "/usr/share/nginx/html/test") == "testing\n"
    rejected = box.kubectl("exec", "nginx", "--", "sh", "-c", ": > /usr/share/nginx/html/test", fails=True)
    assert "Read-only file system" in rejected
    box.kubectl("delete", "pod", "nginx", "--now", "--timeout=300s")
    _tonnage(box, "rm", "nginx:1.16-alpine", "kfox1111/misc:test")


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "image-populator" / "nginx.yaml"


def test_the_walk_through_of_the_image_populator_with_its_driver(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    """Its pod, unchanged; what the pod writes has a limit, and the image stays as it is."""
    folder = tmp_path / "images"
    folder.mkdir()
    nginx = made.layout(
        [made.busybox(str(find("busybox")))], name="nginx:1.16-alpine", Cmd=["/bin/sh", "-c", "sleep 1000"]
    )
    data = made.layout([LayerTar().add("test", b"testing\n", mode=0o644).data()], name="kfox1111/misc:test")
    for number, files in enumerate((nginx, data)):
        (folder / f"{number}.tar").write_bytes(made.archive(files))
    pool = "image,name=scratch,size=4Gi,sparse=yes"
    box = make_cluster("--nodes", "1", "--pool", pool, "--compat", "image-populator", "--images", str(folder))
    box.up()
    try:
        box.kubectl("create", "-f", str(EXAMPLE))
        box.kubectl("wait", "--for=condition=Ready", "pod/nginx", "--timeout=300s")
        shown = "/usr/share/nginx/html"
        assert box.kubectl("exec", "nginx", "--", "cat", f"{shown}/test") == "testing\n"
        box.kubectl("exec", "nginx", "--", "sh", "-c", f"echo changed > {shown}/test")
        assert box.kubectl("exec", "nginx", "--", "cat", f"{shown}/test") == "changed\n"
        _, line = box.kubectl("exec", "nginx", "--", "df", "-m", shown).splitlines()
        assert 1024 <= int(line.split()[1]) < 1100
        (image,) = (one for one in json.loads(_tonnage(box, "list", "-o", "json"))["images"] if "misc" in one["name"])
        assert (box.data / "images/layers" / image["layers"][0] / "root/test").read_text() == "testing\n"
        box.kubectl("delete", "pod", "nginx", "--now", "--timeout=300s")
        box.until(
            "the volume goes", lambda: not list((box.data / "nodes").glob("*/kubelet/plugins/image.csi.k8s.io/trees/*"))
        )
    finally:
        box.down("--purge")
