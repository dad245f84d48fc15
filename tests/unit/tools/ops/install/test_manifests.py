"""The objects of an installation, and the chart that is made of the same templates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripts import gen_chart
from tests.yaml_texts import read, read_all

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.node.config import driver
from tonnage.node.config import node as config_node
from tonnage.node.config.node import NODE_FILE
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.storage.pools import kinds
from tonnage.tools.cli.main import build_parser
from tonnage.tools.ops.install.manifests import METRICS_PORT, PARTS, render, template
from tonnage.tools.ops.install.options import Class, Installation, parse_installed_issuer
from tonnage_box.bootstrap import group_class, snapshot_class

Objects = dict[tuple[str, str], Any]


def objects(chosen: Installation) -> Objects:
    """(kind, name) -> object."""
    found = {}
    for obj in read_all(render(chosen)):
        key = (obj["kind"], obj["metadata"]["name"])
        assert key not in found
        found[key] = obj
    return found


def test_default_installation() -> None:
    found = objects(Installation())
    kinds = {kind for kind, _ in found}
    assert {"Namespace", "CSIDriver", "StorageClass", "DaemonSet", "Deployment", "PodDisruptionBudget"} <= kinds
    assert {"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy", "ConfigMap"} <= kinds
    assert not {"PodMonitor", "PrometheusRule"} & kinds
    for (kind, _), obj in found.items():
        labels = obj["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "tonnage", kind
        assert labels["app.kubernetes.io/version"], kind
    assert found["DaemonSet", "tonnage-node"]["metadata"]["labels"]["app.kubernetes.io/component"] == "node"


def test_driver_is_what_the_agent_is() -> None:
    spec = objects(Installation())["CSIDriver", names.DRIVER]["spec"]
    assert spec == {
        "attachRequired": False,
        "podInfoOnMount": True,
        "storageCapacity": True,
        "fsGroupPolicy": "File",
        "requiresRepublish": False,
        "seLinuxMount": True,
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    }


@pytest.mark.parametrize(
    ("pools", "groups", "is_promised"),
    [
        (["image", "lvm", "pmem"], ["lvm"], True),
        (["image", "quota"], [], False),
        (["image"], ["btrfs"], False),
        (["static"], [], False),
    ],
)
def test_contexts_of_mounts_are_promised_where_every_pool_takes_them(
    pools: list[str], groups: list[str], is_promised: bool
) -> None:
    made = [{"name": kind, "kind": kind, "path": f"/{kind}"} for kind in (*pools, *groups)]
    chosen = Installation(pools=made[: len(pools)], groups={"other": made[len(pools) :]})
    assert objects(chosen)["CSIDriver", names.DRIVER]["spec"]["seLinuxMount"] is is_promised


def test_configuration_is_one_that_a_node_takes(tmp_path: Path) -> None:
    pools = (
        {"name": "a", "kind": "lvm", "path": "vg0"},
        {"name": "b", "kind": "image", "path": "/data", "size": "1Gi"},
    )
    chosen = Installation(
        pools=pools, node={"bind": "controller", "scope": "label"}, drivers={"csi.x.y": "topology.x.y/node"}
    )
    file = tmp_path / "node.yaml"
    file.write_text(objects(chosen)["ConfigMap", "tonnage-node"]["data"]["node.yaml"])
    read = driver.load(file, NODE_FILE)
    merged = config_node.merge(read, {}, driver.pools_of(read, "node.yaml"), node="n1")

    assert [str(pool) for pool in merged.driver.pools] == ["lvm:vg0,name=a", "image:/data,name=b,size=1Gi,rootfs=no"]
    assert (merged.agent.binding, merged.agent.scope) == ("controller", "label")
    assert [str(path) for path in merged.agent.endpoints] == ["/var/lib/kubelet/plugins/csi.x.y/csi.sock"]
    assert str(merged.driver.metrics) == f"0.0.0.0:{METRICS_PORT}"


def test_folders_of_pools_are_mounted() -> None:
    pools = ({"name": "a", "kind": "image", "path": "/data"}, {"name": "b", "kind": "btrfs", "path": "/data"})
    pod = objects(Installation(pools=(*pools, {"name": "c", "kind": "lvm", "path": "vg0"})))[
        "DaemonSet", "tonnage-node"
    ]
    spec = pod["spec"]["template"]["spec"]
    mounts = {m["name"]: m for m in spec["containers"][0]["volumeMounts"]}
    volumes = {v["name"]: v for v in spec["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert [v["hostPath"]["path"] for n, v in volumes.items() if n.startswith("pool-")] == ["/data"]
    assert mounts["pool-0"] == {"name": "pool-0", "mountPath": "/data", "mountPropagation": "Bidirectional"}
    assert mounts["kubelet"]["mountPropagation"] == "Bidirectional"


def test_folders_that_volumes_are_filled_from_are_mounted_for_reading() -> None:
    file = {"sources": ["/srv/models", "/data", "/srv/models"], "image_stores": ["/srv/images/"], "fetch": ["h:9000"]}
    pools = ({"name": "a", "kind": "image", "path": "/data"},)
    found = objects(Installation(pools=pools, node=file))
    spec = found["DaemonSet", "tonnage-node"]["spec"]["template"]["spec"]
    mounts = {m["name"]: m for m in spec["containers"][0]["volumeMounts"]}
    volumes = {v["name"]: v for v in spec["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert len({mount["mountPath"] for mount in mounts.values()}) == len(mounts)
    assert {name: v["hostPath"] for name, v in volumes.items() if name.startswith("content-")} == {
        "content-0": {"path": "/srv/images", "type": "DirectoryOrCreate"},
        "content-1": {"path": "/srv/models", "type": "Directory"},
    }
    reading = {"readOnly": True, "mountPropagation": "HostToContainer"}
    assert mounts["content-1"] == {"name": "content-1", "mountPath": "/srv/models", **reading}
    config = read(found["ConfigMap", "tonnage-node"]["data"]["node.yaml"])
    assert (config["sources"], config["imageStores"]) == (file["sources"], file["image_stores"])


def test_the_agent_may_write_image_stores_for_volumes_of_images_and_reads_their_other_sources() -> None:
    inline = ["image,folder=/srv/saved,containerd=/run/containerd/containerd.sock"]
    found = objects(Installation(node={"image_stores": ["/srv/images"], "inline": inline}))
    spec = found["DaemonSet", "tonnage-node"]["spec"]["template"]["spec"]
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in spec["containers"][0]["volumeMounts"]}
    assert (mounts["/srv/images"], mounts["/srv/saved"], mounts["/run/containerd"]) == (False, True, True)
    with pytest.raises(InvalidError, match="want an absolute path"):
        render(Installation(node={"inline": ["image,folder=saved"]}))


def test_flexvolumes_have_the_kubelets_folder_and_that_of_their_calls() -> None:
    found = objects(Installation(node={"flexvolume": "/etc/kubernetes/volumeplugins"}))
    spec = found["DaemonSet", "tonnage-node"]["spec"]["template"]["spec"]
    mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    volumes = {v["name"]: v.get("hostPath", {}).get("path") for v in spec["volumes"]}
    assert mounts.keys() == volumes.keys()
    for name, path in (("flexvolume", "/etc/kubernetes/volumeplugins"), ("run", "/run/tonnage")):
        assert (mounts[name], volumes[name]) == (path, path)
    config = read(found["ConfigMap", "tonnage-node"]["data"]["node.yaml"])
    assert config["flexvolume"] == "/etc/kubernetes/volumeplugins"


def test_provisioners_of_flexvolumes_are_known_where_agents_serve_them() -> None:
    flex = json.dumps(names.FLEX_PROVISIONERS, sort_keys=True, separators=(",", ":"))
    for node in ({}, {"flexvolume": "/plugins"}):
        found, text = objects(Installation(node=node)), render(Installation(node=node))
        container = found["Deployment", "tonnage-controller"]["spec"]["template"]["spec"]["containers"][0]
        served = {part.removeprefix("--driver=").partition("=")[0] for part in container["args"] if "--driver=" in part}
        assert served == (set(names.FLEX_PROVISIONERS) if node else set())
        assert (("CSIDriver", names.FLEX_COUNTED) in found) is bool(node)
        assert (flex in text) is bool(node)
        scope = found["MutatingAdmissionPolicy", "tonnage-scope"]["spec"]["matchConditions"][0]["expression"]
        assert ("tonnage.dev/flex-provisioner" in scope) is bool(node)
    assert found["CSIDriver", names.FLEX_COUNTED]["spec"]["storageCapacity"]


def test_no_folder_is_mounted_in_one_that_is_mounted_with_propagation() -> None:
    """With one, the node would have twice as many mounts there after each start of the agent."""
    below = "/var/lib/kubelet/volumeplugins"
    pools = [
        {"name": f"p{n}", "kind": "image", "path": path} for n, path in enumerate(("/d/p", "/d", "/var/lib/kubelet/p"))
    ]
    file = {
        "flexvolume": below,
        "sources": ["/d/models", "/srv", "/srv/a"],
        "image_stores": ["/var/lib/kubelet/images"],
    }
    found = objects(Installation(pools=pools, node=file))
    spec = found["DaemonSet", "tonnage-node"]["spec"]["template"]["spec"]
    mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    assert mounts.keys() == {v["name"] for v in spec["volumes"]}
    mine = {path for name, path in mounts.items() if name.startswith(("pool-", "content-", "flexvolume"))}
    assert mine == {"/d", "/srv", "/srv/a"}
    config = read(found["ConfigMap", "tonnage-node"]["data"]["node.yaml"])
    assert config["flexvolume"] == below


def test_inline_drivers_have_an_object_each_and_are_in_the_nodes_file() -> None:
    given = ["node-labels,name=labels.example.com", "image", "cert"]
    found = objects(Installation(node={"inline": given}))
    specs = {name: each["spec"] for (kind, name), each in found.items() if kind == "CSIDriver"}
    assert specs.keys() == {names.DRIVER, "labels.example.com", "image.tonnage.dev", "cert.tonnage.dev"}
    assert not any(spec["attachRequired"] for spec in specs.values())
    assert specs["image.tonnage.dev"]["volumeLifecycleModes"] == ["Ephemeral", "Persistent"]
    assert specs["cert.tonnage.dev"]["requiresRepublish"]
    assert read(found["ConfigMap", "tonnage-node"]["data"]["node.yaml"])["inline"] == given


@pytest.mark.parametrize(
    ("given", "text"), [("nosuch", "there is no such kind"), ("cert,colour=red", "unknown option 'colour'")]
)
def test_an_inline_driver_that_does_not_exist_is_rejected(given: str, text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        render(Installation(node={"inline": [given]}))


def test_no_more_power_than_needed() -> None:
    found = objects(Installation())
    node = found["DaemonSet", "tonnage-node"]["spec"]["template"]["spec"]
    controller = found["Deployment", "tonnage-controller"]["spec"]["template"]["spec"]
    assert not node["hostNetwork"]
    assert not node["hostPID"]
    for pod in (node, controller):
        assert all(c["securityContext"]["readOnlyRootFilesystem"] for c in pod["containers"])
    assert node["containers"][0]["securityContext"]["privileged"]
    restricted = controller["containers"][0]["securityContext"]
    assert restricted["runAsNonRoot"]
    assert not restricted["allowPrivilegeEscalation"]
    assert restricted["capabilities"] == {"drop": ["ALL"]}
    assert not [v for v in controller.get("volumes", []) if "hostPath" in v]


def test_a_scheduler_where_asked_for() -> None:
    assert not [name for _, name in objects(Installation()) if name == names.SCHEDULER]
    found = objects(Installation(scheduler=ScoringStrategy.BALANCED))
    kinds = {kind for kind, name in found if name == names.SCHEDULER}
    deployment = {"Deployment", "PodDisruptionBudget", "ServiceAccount"}
    assert kinds == deployment | {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    spec = found["Deployment", names.SCHEDULER]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert build_parser("scheduler").parse_args(container["args"]).scoring == "balanced"
    assert spec["serviceAccountName"] == names.SCHEDULER
    assert container["securityContext"]["runAsNonRoot"]
    assert "volumes" not in spec


def test_the_controller_is_told_of_nodes_to_come() -> None:
    chosen = Installation(group_labels=["example.com/group"], templates=["pool=big:tonnage-scratch=100Gi"])
    found = next(o for o in read_all(render(chosen)) if o["kind"] == "Deployment")
    arguments = found["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[-2:] == ["--node-group-label=example.com/group", "--node-template=pool=big:tonnage-scratch=100Gi"]


def test_roles() -> None:
    """No rule gives more than verbs by name; none can remove or write secrets, roles, pods."""
    for (kind, name), role in objects(Installation(secrets={"apps": ["x"]})).items():
        if kind not in ("Role", "ClusterRole"):
            continue
        for rule in role["rules"]:
            assert not {"*", "deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"]), name
            assert "*" not in (*rule["resources"], *rule["apiGroups"]), name
            if "secrets" in rule["resources"]:
                assert (rule["verbs"], rule["resourceNames"]) == (["get"], ["x"])
            if "pods" in rule["resources"]:
                assert set(rule["verbs"]) <= {"get", "list", "watch"}


@pytest.mark.parametrize(
    "file", ["rbac-node.yaml", "rbac-controller.yaml", "rbac-scheduler.yaml", "rbac-snapshots.yaml"]
)
def test_each_rule_says_why(file: str) -> None:
    lines = template(file).splitlines()
    rules = [number for number, line in enumerate(lines) if line.startswith("  - apiGroups:")]
    assert rules
    assert [lines[n] for n in rules if not lines[n - 1].startswith("  # ")] == []


def test_signers_are_listed_one_by_one() -> None:
    """Agents may ask those of the issuers and of the nodes' file; the controller signs for its issuers only."""
    inline = ["cert,issuers=a=csr:example.com/a;b=ca;*=csr:tonnage.dev/internal", "node-labels"]
    issuers = [parse_installed_issuer(f"{name}=secret-{name}") for name in ("internal", "edge")]
    found = objects(Installation(node={"inline": inline}, issuers=issuers))
    ours = ["tonnage.dev/edge", "tonnage.dev/internal"]
    rules = found["ClusterRole", "tonnage-controller-certificates"]["rules"]
    assert [rule["resourceNames"] for rule in rules if rule["resources"] == ["signers"]] == [ours]

    def asked(objects: Objects) -> str:
        validations = objects["ValidatingAdmissionPolicy", "tonnage-agent-certificates"]["spec"]["validations"]
        return str(validations[-1]["expression"].partition(" in ")[2])

    assert json.loads(asked(found)) == [*ours, "example.com/a"]
    assert json.loads(asked(objects(Installation()))) == []


def test_older_clusters_have_no_policies() -> None:
    kinds = {version: {kind for kind, _ in objects(Installation(kubernetes=version))} for version in ((1, 29), (1, 30))}
    assert "ValidatingAdmissionPolicy" not in kinds[1, 29]
    assert "ValidatingAdmissionPolicy" in kinds[1, 30]
    assert "MutatingAdmissionPolicy" not in kinds[1, 30]
    all_claims = objects(Installation(node={"scope": "all"}))
    assert [name for kind, name in all_claims if kind == "MutatingAdmissionPolicy"] == ["tonnage-empty-dir"]


def test_classes() -> None:
    late = Class("late", {"pool": "b"}, default=True, fields={"reclaimPolicy": "Retain"})
    now = Class("now", fields={"volumeBindingMode": "Immediate", "allowVolumeExpansion": True})
    found = objects(Installation(classes=(late, now)))
    assert found["StorageClass", "late"]["parameters"] == {"pool": "b"}
    assert found["StorageClass", "late"]["metadata"]["annotations"] == {names.DEFAULT_CLASS: "true"}
    assert found["StorageClass", "late"]["reclaimPolicy"] == "Retain"
    assert found["StorageClass", "now"]["volumeBindingMode"] == "Immediate"
    assert found["StorageClass", "now"]["allowVolumeExpansion"] is True


@pytest.mark.parametrize(("given", "allowed"), [([], None), (["a", "b"], ["a", "b"])])
def test_secrets_that_may_be_read(given: list[str], allowed: list[str] | None) -> None:
    role = objects(Installation(secrets={"db": given}))["Role", "tonnage-node-secrets"]
    assert role["metadata"]["namespace"] == "db"
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in role["rules"]] == [(["get"], allowed)]


def test_the_snapshot_controller_has_its_rights_only_where_it_is() -> None:
    plain = objects(Installation())
    assert not [key for key in plain if key[1] in ("tonnage-controller-snapshots", "tonnage")]
    found = objects(Installation(snapshot_controller=True))
    arguments = found["Deployment", "tonnage-controller"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--snapshot-controller" in arguments
    assert build_parser("controller").parse_args(arguments).snapshot_controller
    for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
        assert (kind, "tonnage-controller-snapshots") in found
    rules = found["ClusterRole", "tonnage-controller-snapshots"]["rules"]
    assert {group for rule in rules for group in rule["apiGroups"]} == {
        "snapshot.storage.k8s.io",
        "groupsnapshot.storage.k8s.io",
    }
    assert ("VolumeSnapshotClass", "tonnage") not in found
    assert ("VolumeGroupSnapshotClass", "tonnage") not in found


def test_the_controller_attaches_volumes_only_where_it_is_told() -> None:
    plain = objects(Installation(secrets={"apps": ["x"]}))
    assert ("ClusterRole", "tonnage-controller-attach") not in plain
    chosen = Installation(
        secrets={"apps": ["x"]}, attach_endpoints=["unix:///plugins/a/csi.sock", "unix:///plugins/a/more.sock"]
    )
    found = objects(chosen)
    pods = [one["Deployment", "tonnage-controller"]["spec"]["template"]["spec"] for one in (plain, found)]
    (before,), (after,) = (pod["containers"] for pod in pods)
    assert before["securityContext"]["runAsNonRoot"]
    assert "volumeMounts" not in before
    assert after["securityContext"]["runAsUser"] == 0
    assert after["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert [mount["mountPath"] for mount in after["volumeMounts"]] == ["/plugins/a"]
    assert [volume["hostPath"]["path"] for volume in pods[1]["volumes"]] == ["/plugins/a"]
    assert len(build_parser("controller").parse_args(after["args"]).attach_endpoints) == 2
    rules = found["ClusterRole", "tonnage-controller-attach"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["volumeattachments"], ["get", "list", "watch", "patch"]),
        (["volumeattachments/status"], ["patch"]),
    ]
    readers = [one["RoleBinding", "tonnage-node-secrets"]["subjects"] for one in (plain, found)]
    assert [[subject["name"] for subject in one] for one in readers] == [
        ["tonnage-node"],
        ["tonnage-node", "tonnage-controller"],
    ]


def test_a_snapshot_class_by_option() -> None:
    found = objects(Installation(snapshot_class=True))
    for kind, box in (
        ("VolumeSnapshotClass", snapshot_class(names.DRIVER)),
        ("VolumeGroupSnapshotClass", group_class(names.DRIVER)),
    ):
        made = found[kind, "tonnage"]
        assert (made["driver"], made["deletionPolicy"]) == (box["driver"], box["deletionPolicy"])
        assert made["metadata"]["annotations"] == box["metadata"]["annotations"]
        assert box["metadata"].get("labels", {}).items() <= made["metadata"]["labels"].items()


def test_monitoring() -> None:
    found = objects(Installation(monitoring=True))
    dashboard = json.loads(found["ConfigMap", "tonnage-dashboard"]["data"]["tonnage.json"])
    shown = {name for panel in dashboard["panels"] for name in metric_names(panel["targets"][0]["expr"])}
    rules = found["PrometheusRule", "tonnage"]["spec"]["groups"][0]["rules"]
    asked = shown | {name for rule in rules for name in metric_names(rule["expr"])}
    from prometheus_client.parser import text_string_to_metric_families as families

    from tonnage.base.observe import metrics

    known = {family.name for family in families(metrics.render().decode())}
    assert {re.sub("_(total|bucket)$", "", name) for name in asked} <= known
    assert found["PodMonitor", "tonnage"]["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"


def metric_names(expression: str) -> set[str]:
    """Names of metrics in an expression of PromQL: our words with an underscore in them."""
    return set(re.findall(r"\b(?:tonnage|controller|csi)_\w+", expression))


def test_nodes_of_a_group_have_an_agent_of_their_own() -> None:
    pools = [{"name": "scratch", "kind": "image", "path": "/fast"}]
    found = objects(Installation(groups={"nvme": pools}))
    plain, nvme = found["DaemonSet", "tonnage-node"]["spec"], found["DaemonSet", "tonnage-node-nvme"]["spec"]
    group = {"tonnage.dev/group": "nvme"}
    for spec, labels in ((plain, {}), (nvme, group)):
        wanted = {"app.kubernetes.io/name": "tonnage", "app.kubernetes.io/component": "node", **labels}
        assert spec["selector"]["matchLabels"] == wanted
        assert wanted.items() <= spec["template"]["metadata"]["labels"].items()
    assert nvme["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", **group}
    assert "affinity" not in nvme["template"]["spec"]
    affinity = plain["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = affinity["nodeSelectorTerms"][0]["matchExpressions"]
    assert expression == {"key": "tonnage.dev/group", "operator": "NotIn", "values": ["nvme"]}
    volumes = {v["name"]: v for v in nvme["template"]["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == "tonnage-node-nvme"
    assert volumes["pool-0"]["hostPath"]["path"] == "/fast"
    files = {
        name: read(o["data"]["node.yaml"]) for (kind, name), o in found.items() if "node.yaml" in o.get("data", {})
    }
    assert files["tonnage-node-nvme"]["pools"] == pools
    assert files["tonnage-node"]["pools"][0]["path"] == "/var/lib/tonnage"


def test_a_network_policy_lets_metrics_in_and_the_api_server_out() -> None:
    assert ("NetworkPolicy", "tonnage") not in objects(Installation())
    spec = objects(Installation(network_policy=True))["NetworkPolicy", "tonnage"]["spec"]
    assert spec["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "tonnage"}}
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}]}]
    assert spec["egress"] == [{"ports": [{"port": port, "protocol": "TCP"} for port in (443, 6443)]}]


def test_chart_is_made_of_the_same_templates() -> None:
    made = gen_chart.chart_files()
    stale = [str(path) for path, text in made.items() if not path.exists() or path.read_text() != text]
    assert not stale, "run: python scripts/gen_chart.py"
    there = {path.name for path in (gen_chart.CHART / "templates").glob("*.yaml")}
    assert there == {part.file for part in PARTS}


def test_chart_knows_what_the_program_knows() -> None:
    schema = json.loads((gen_chart.CHART / "values.schema.json").read_text())["properties"]
    values = read((gen_chart.CHART / "values.yaml").read_text())
    assert schema["pools"]["items"]["properties"]["kind"]["enum"] == [*kinds.MODULES, *kinds.RENAMED]
    assert set(values) == set(schema) - {"global"}
    assert values["metricsPort"] == METRICS_PORT
    lines = (gen_chart.CHART / "values.yaml").read_text().splitlines()
    assert [key for key in values if not is_explained(key, lines)] == []


def is_explained(key: str, lines: list[str]) -> bool:
    """Whether a comment stands before a value."""
    place = next(number for number, line in enumerate(lines) if line.startswith(f"{key}:"))
    return lines[place - 1].startswith("# ")


def test_labels_of_pods_are_found() -> None:
    found = objects(Installation())
    for key in (("DaemonSet", "tonnage-node"), ("Deployment", "tonnage-controller")):
        spec = found[key]["spec"]
        wanted, labels = spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]
        assert wanted.items() <= labels.items()
    budget = found["PodDisruptionBudget", "tonnage-controller"]["spec"]["selector"]["matchLabels"]
    assert budget == found["Deployment", "tonnage-controller"]["spec"]["selector"]["matchLabels"]


def test_values_of_pools_are_plain() -> None:
    """What a person would read: no tags or anchors of YAML."""
    text = render(Installation())
    assert "!!" not in text
    assert "&id" not in text
    assert msgspec.yaml.decode(text.split("---\n")[0])["kind"] == "Namespace"
