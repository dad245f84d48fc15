"""The chart, rendered by helm itself: the same objects as `tonnage manifests` prints, and bad values are rejected."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.gen_chart import CHART

from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.tools.ops.install.manifests import render
from tonnage.tools.ops.install.options import Class, Installation, parse_installed_issuer

pytestmark = [pytest.mark.real, pytest.mark.programs]
Values = dict[str, Any]
Template = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def template(go_program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Template:
    """template(values, namespace=..., version=...): what helm makes of the chart."""
    helm, folder = go_program("helm"), tmp_path_factory.mktemp("helm")

    def run(
        values: Values, *, namespace: str = "tonnage-system", version: str = "1.36.0"
    ) -> subprocess.CompletedProcess[str]:
        file = folder / "values.json"
        file.write_text(json.dumps(values))
        command = [str(helm), "template", "tonnage", str(CHART), "-n", namespace, "--kube-version", version]
        command += ["--api-versions", "groupsnapshot.storage.k8s.io/v1"]
        home = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [*command, "-f", str(file)], capture_output=True, text=True, check=False, timeout=300, env=home
        )

    return run


def objects(text: str) -> dict[tuple[str, str, str], Any]:
    """(kind, namespace, name) -> object, without who manages it; texts of YAML read."""
    found = {}
    for obj in yaml.safe_load_all(text):
        if obj is None:
            continue
        _forget(obj)
        if "node.yaml" in obj.get("data", {}):
            obj["data"]["node.yaml"] = yaml.safe_load(obj["data"]["node.yaml"])
        if "tonnage.json" in obj.get("data", {}):
            obj["data"]["tonnage.json"] = json.loads(obj["data"]["tonnage.json"])
        found[obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]] = obj
    return found


def _forget(obj: Any) -> None:
    if isinstance(obj, dict):
        obj.pop("app.kubernetes.io/managed-by", None)
        for value in obj.values():
            _forget(value)
    elif isinstance(obj, list):
        for value in obj:
            _forget(value)


POOLS = [
    {"name": "fast", "kind": "lvm", "path": "vg0", "thin": "t"},
    {"name": "big", "kind": "image", "path": "/data", "size": "10Gi"},
    {"name": "other", "kind": "btrfs", "path": "/more"},
    {"name": "again", "kind": "static", "path": "/data"},
]
NESTED = [
    {"name": f"p{number}", "kind": "image", "path": path}
    for number, path in enumerate(("/d/p", "/d", "/var/lib/kubelet/p", "/d2"))
]
SAME: dict[str, tuple[Values, Installation, dict[str, str]]] = {
    "as it comes": ({}, Installation(), {}),
    "with a scheduler": (
        {"scheduler": {"enabled": True, "scoring": "tightest-fit"}},
        Installation(scheduler=ScoringStrategy.TIGHTEST_FIT),
        {},
    ),
    "snapshot classes": ({"snapshotClass": True}, Installation(snapshot_class=True), {}),
    "another namespace": ({}, Installation(namespace="disks"), {"namespace": "disks"}),
    "another image": (
        {"image": {"repository": "example.invalid/tonnage", "tag": "9"}},
        Installation(image="example.invalid/tonnage:9"),
        {},
    ),
    "by digest": (
        {"image": {"repository": "example.invalid/tonnage", "digest": f"sha256:{'0' * 64}"}},
        Installation(image=f"example.invalid/tonnage@sha256:{'0' * 64}"),
        {},
    ),
    "pools": ({"pools": POOLS}, Installation(pools=POOLS), {}),
    "only volume groups": ({"pools": POOLS[:1]}, Installation(pools=POOLS[:1]), {}),
    "classes": (
        {
            "classes": {
                "tonnage-scratch": None,
                "a": {"default": True, "parameters": {"pool": "fast"}},
                "b": {"reclaimPolicy": "Retain", "volumeBindingMode": "Immediate", "allowVolumeExpansion": True},
            }
        },
        Installation(
            classes=(
                Class("a", {"pool": "fast"}, default=True),
                Class(
                    "b",
                    fields={"reclaimPolicy": "Retain", "volumeBindingMode": "Immediate", "allowVolumeExpansion": True},
                ),
            )
        ),
        {},
    ),
    "binding, scope, kubelet": (
        {"bind": "controller", "scope": "all", "kubelet": "/data/kubelet"},
        Installation(node={"bind": "controller", "scope": "all", "kubelet": "/data/kubelet"}),
        {},
    ),
    "secrets": (
        {"secrets": {"apps": [], "db": ["key", "other"]}},
        Installation(secrets={"apps": [], "db": ["key", "other"]}),
        {},
    ),
    "drivers whose volumes are attached": (
        {"secrets": {"apps": ["x"]}, "controller": {"attachEndpoints": ["unix:///p/a.sock", "unix:///p/b.sock"]}},
        Installation(secrets={"apps": ["x"]}, attach_endpoints=["unix:///p/a.sock", "unix:///p/b.sock"]),
        {},
    ),
    "other drivers": (
        {"csiDrivers": {"csi.x.y": "topology.x.y/node"}},
        Installation(drivers={"csi.x.y": "topology.x.y/node"}),
        {},
    ),
    "groups of nodes": (
        {"pools": POOLS[:1], "nodeGroups": {"big": {"pools": POOLS[1:3]}, "nvme": {"pools": POOLS}}},
        Installation(pools=POOLS[:1], groups={"big": POOLS[1:3], "nvme": POOLS}),
        {},
    ),
    "images": (
        {
            "imageStores": ["/srv/images"],
            "inlineDrivers": ["image,folder=/srv/saved,containerd=/run/containerd/c.sock"],
        },
        Installation(
            node={
                "image_stores": ["/srv/images"],
                "inline": ["image,folder=/srv/saved,containerd=/run/containerd/c.sock"],
            }
        ),
        {},
    ),
    "content": (
        {
            "pools": POOLS,
            "fetch": ["h:9000"],
            "imageStores": ["/srv/images"],
            "sources": ["/srv/models", "/data", "/srv/models"],
        },
        Installation(
            pools=POOLS,
            node={
                "fetch": ["h:9000"],
                "image_stores": ["/srv/images"],
                "sources": ["/srv/models", "/data", "/srv/models"],
            },
        ),
        {},
    ),
    "content by the nodes' file": (
        {"sources": ["/srv/old"], "config": {"sources": ["/srv/models"]}},
        Installation(node={"sources": ["/srv/models"]}),
        {},
    ),
    "folders in others": (
        {
            "pools": NESTED,
            "imageStores": ["/var/lib/kubelet/images"],
            "sources": ["/d/models", "/srv", "/srv/a", "/dd"],
            "config": {"flexvolume": "/d/plugins"},
        },
        Installation(
            pools=NESTED,
            node={
                "image_stores": ["/var/lib/kubelet/images"],
                "sources": ["/d/models", "/srv", "/srv/a", "/dd"],
                "flexvolume": "/d/plugins",
            },
        ),
        {},
    ),
    "a network policy": ({"networkPolicy": {"enabled": True}}, Installation(network_policy=True), {}),
    "inline drivers": (
        {"inlineDrivers": ["node-labels,memory=8Mi,name=labels.example.com", "cert"]},
        Installation(node={"inline": ["node-labels,memory=8Mi,name=labels.example.com", "cert"]}),
        {},
    ),
    "no inline volumes": ({"inlineVolumes": False}, Installation(inline=False), {}),
    "populators": ({"controller": {"freePopulators": True}}, Installation(free_populators=True), {}),
    "eviction": ({"controller": {"evictUnfit": True}}, Installation(evict_unfit=True), {}),
    "Kubernetes 1.35": ({}, Installation(kubernetes=(1, 35)), {"version": "1.35.2"}),
    "Kubernetes 1.29": ({}, Installation(kubernetes=(1, 29)), {"version": "1.29.0"}),
    "monitoring": (
        {"monitoring": {"podMonitor": True, "rules": True, "dashboard": True}},
        Installation(monitoring=True),
        {},
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_same_objects(name: str, template: Template) -> None:
    values, chosen, how = SAME[name]
    ended = template({"createNamespace": True, **values}, **how)
    assert ended.returncode == 0, ended.stderr
    ours, theirs = objects(render(chosen)), objects(ended.stdout)
    assert theirs.keys() == ours.keys()
    for key, obj in ours.items():
        assert theirs[key] == obj, key


def test_signers_of_certificates(template: Template) -> None:
    """All that names them; the controller's volumes have other names in the chart."""
    inline = ["cert,issuers=a=csr:example.com/b;b=ca;*=csr:example.com/a"]
    issuers = {"internal": {"secret": "x"}, "edge": {"secret": "y"}}
    ended = template({"inlineDrivers": inline, "controller": {"certificateIssuers": issuers}})
    chosen = [parse_installed_issuer(text) for text in ("internal=x", "edge=y")]
    ours, theirs = objects(render(Installation(node={"inline": inline}, issuers=chosen))), objects(ended.stdout)
    for kind, name in (
        ("ClusterRole", "tonnage-controller-certificates"),
        ("ValidatingAdmissionPolicy", "tonnage-agent-certificates"),
    ):
        assert theirs[kind, "", name] == ours[kind, "", name]


def test_comments_are_there_too(template: Template) -> None:
    text = template({}).stdout
    assert "# Least power: what RBAC cannot say." in text
    assert "kind: Namespace" not in text


REJECTED: dict[str, tuple[Values, str]] = {
    "unknown key": ({"pool": []}, "pool"),
    "no pools": ({"pools": []}, "pools"),
    "unknown kind": ({"pools": [{"kind": "zfs", "path": "/x"}]}, "kind"),
    "a path that leaves": ({"pools": [{"kind": "image", "path": "/x/../etc"}]}, "path"),
    "unknown field of a class": ({"classes": {"a": {"provisioner": "x"}}}, "provisioner"),
    "a number as parameter": ({"classes": {"a": {"parameters": {"iops": 5}}}}, "iops"),
    "unknown binding": ({"bind": "nobody"}, "bind"),
    "unknown scope": ({"scope": "some"}, "scope"),
    "kubelet's folder not absolute": ({"kubelet": "kubelet"}, "kubelet"),
    "a port that needs root": ({"metricsPort": 80}, "metricsPort"),
    "a digest that is none": ({"image": {"digest": "latest"}}, "digest"),
    "replicas as text": ({"controller": {"replicas": "two"}}, "replicas"),
    "a source that leaves": ({"sources": ["/srv/../etc"]}, "sources"),
    "a source that is the root": ({"sources": ["/"]}, "sources"),
    "a source in the nodes' file": ({"config": {"sources": ["models"]}}, "sources"),
    "an image store over the devices": ({"imageStores": ["/dev"]}, "imageStores"),
    "policies by word": ({"policies": {"agent": "maybe"}}, "agent"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_bad_values_are_rejected(name: str, template: Template) -> None:
    values, named = REJECTED[name]
    ended = template(values)
    assert ended.returncode != 0
    assert "don't meet the specifications of the schema" in ended.stderr
    assert named in ended.stderr


def test_a_pool_that_holds_the_agents_own_folders_is_rejected(template: Template) -> None:
    ended = template({"pools": [{"name": "x", "kind": "image", "path": "/run"}]})
    assert ended.returncode != 0
    assert "pool x: path /run: the agent's pod has another folder at /run/lock/lvm" in ended.stderr


def test_old_cluster_is_rejected(template: Template) -> None:
    ended = template({}, version="1.23.0")
    assert ended.returncode != 0
    assert "1.24" in ended.stderr


def test_linted(go_program: Callable[[str], Path]) -> None:
    ended = subprocess.run(
        [go_program("helm"), "lint", "--strict", "--kube-version", "1.36.0", CHART],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
