"""`tonnage manifests`."""

from __future__ import annotations

import pytest
from tests.yaml_texts import read, read_all

from tonnage.kubernetes.api import names
from tonnage.tools.cli.main import main
from tonnage.tools.ops.install.manifests import render
from tonnage.tools.ops.install.options import Installation


def test_prints_what_is_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests"]) == 0
    assert capsys.readouterr().out == render(Installation())


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--namespace", "disks", "--image", "example.invalid/t:1", "--pool", "lvm:vg0,name=fast"]
    given += ["--pool", "image:/disk,name=big,size=10Gi", "--class", "a,pool=fast,default=yes", "--class", "b,pool=big"]
    given += [
        "--bind",
        "controller",
        "--scope",
        "label",
        "--capacity",
        "tiers",
        "--kubelet",
        "/data/kubelet/",
        "--secret",
        "apps/key",
    ]
    given += ["--driver", "csi.x.y=topology.x.y/node", "--monitoring", "--no-inline", "--starvation-guard", "5"]
    assert main(["manifests", *given]) == 0
    found = {(o["kind"], o["metadata"]["name"]): o for o in read_all(capsys.readouterr().out)}

    config = read(found["ConfigMap", "tonnage-node"]["data"]["node.yaml"])
    assert config == {
        "pools": [
            {"name": "fast", "kind": "lvm", "path": "vg0"},
            {"name": "big", "kind": "image", "path": "/disk", "size": "10Gi"},
        ],
        "bind": "controller",
        "scope": "label",
        "capacity": "tiers",
        "starvationGuard": 5,
        "kubelet": "/data/kubelet",
        "metrics": "0.0.0.0:9809",
        "csiEndpoints": ["unix:///data/kubelet/plugins/csi.x.y/csi.sock"],
    }
    assert {name for kind, name in found if kind == "StorageClass"} == {"a", "b"}
    assert found["Namespace", "disks"]
    assert (
        found["DaemonSet", "tonnage-node"]["spec"]["template"]["spec"]["containers"][0]["image"]
        == "example.invalid/t:1"
    )
    assert found["PrometheusRule", "tonnage"]
    assert found["CSIDriver", "csi.tonnage.dev"]["spec"]["volumeLifecycleModes"] == ["Persistent"]
    assert found["Role", "tonnage-node-secrets"]["metadata"]["namespace"] == "apps"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--namespace", "A"], "want a DNS label"),
        (["--image", "a b"], "want a reference"),
        (["--pool", "zfs:tank"], "zfs"),
        (["--pool", "image:/a", "--pool", "image:/b"], "two pools are named 'image'"),
        (["--pool", "image:/a/../b"], "without '..'"),
        (["--class", "a", "--class", "a,pool=b"], "two classes are named 'a'"),
        (["--kubelet", "kubelet"], "want an absolute path"),
        (["--driver", "x"], "want NAME=TOPOLOGY_KEY"),
        (["--kubernetes", "new"], "want one as 1.36"),
        (["--source", "models"], "want an absolute path"),
        (["--source", "/a/../b"], "without '..'"),
        (["--source", "/"], "the agent's pod has another folder there"),
        (["--image-store", "/var/lib/kubelet/"], "the agent's pod has another folder there"),
        (["--starvation-guard", "-3"], "--starvation-guard -3: want a number"),
        (["--node-template", "a=b:c=-1Gi"], "a size is at least 0"),
        (["--node-template", "a=b:c=1Gi/-1"], "a size is at least 0"),
        (["--node-template", "a=b:c=1Gi", "--node-template", "a=b:d=1Gi"], "a=b is given twice"),
        (["--node-template", f"{names.TEMPLATE_NODE}=x:c=1Gi"], "want LABEL=VALUE"),
        (["--node-group-label", names.TEMPLATE_NODE], "want a label's key"),
        (["--certificate-issuer", "internal"], "want NAME=SECRET"),
        (["--certificate-issuer", "internal=ca,days=never"], "want NAME=FOLDER"),
    ],
)
def test_rejected(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", *given]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""


def test_hosts_to_fetch_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "--fetch", "files.example.com", "--fetch", "h:9000"]) == 0
    found = {(o["kind"], o["metadata"]["name"]): o for o in read_all(capsys.readouterr().out)}
    assert read(found["ConfigMap", "tonnage-node"]["data"]["node.yaml"])["fetch"] == [
        "files.example.com",
        "h:9000",
    ]
    assert ("CustomResourceDefinition", "contents.tonnage.dev") in found
    assert main(["manifests", "--fetch", "*.example.com"]) != 0


def test_issuers_of_certificates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "--certificate-issuer", "internal=internal-ca,days=30"]) == 0
    found = {(o["kind"], o["metadata"]["name"]): o for o in read_all(capsys.readouterr().out)}
    pod = found["Deployment", "tonnage-controller"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--certificate-issuer=internal=/issuers/internal,days=30" in container["args"]
    assert container["volumeMounts"] == [{"name": "issuer-0", "mountPath": "/issuers/internal", "readOnly": True}]
    assert pod["volumes"] == [{"name": "issuer-0", "secret": {"secretName": "internal-ca"}}]
    (of_agents,) = found["ClusterRole", "tonnage-node-certificates"]["rules"]
    assert of_agents["verbs"] == ["create", "get"]
    agent = found["DaemonSet", "tonnage-node"]["spec"]["template"]["spec"]
    assert "internal-ca" not in str(agent)
    assert main(["manifests"]) == 0
    assert not [name for name in capsys.readouterr().out.split() if name.startswith("tonnage-node-certificates")]
