"""Bounds that the box has and Kubernetes has not: rejected by name, and what is older may shrink, not grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.apps.test_validation import DS, workload
from tests.unit.box.apiserver.kinds.core.validation.test_persistent_volume import volume
from tests.unit.box.apiserver.kinds.core.validation.test_pod import pod

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def terms(count: int, each: int = 1) -> list[Obj]:
    """Terms of node affinity."""
    return [{"matchExpressions": [{"key": "k", "operator": "Exists"}] * each} for _ in range(count)]


def near(count: int, each: int) -> Obj:
    """Pod affinity with so many terms of so many labels."""
    labels = {f"k{number}": "v" for number in range(each)}
    return {"podAffinity": {_REQUIRED: [{"topologyKey": "z", "labelSelector": {"matchLabels": labels}}] * count}}


def tolerations(count: int) -> list[Obj]:
    """Different ones."""
    return [{"key": f"k{number}", "operator": "Exists"} for number in range(count)]


def amounts(count: int) -> Obj:
    """Resources of a node or pod."""
    return {f"a.b/r{number}": "1" for number in range(count)}


def asking(count: int) -> Obj:
    """A pod of two containers that ask for different resources."""
    halves = list(amounts(count).items())
    parts = [dict(halves[: count // 2]), dict(halves[count // 2 :])]
    made = [
        {"name": f"c{n}", "image": "i", "resources": {"limits": part, "requests": part}} for n, part in enumerate(parts)
    ]
    return pod(containers=made)


def group(count: int) -> Obj:
    """A VolumeGroupSnapshot by so many labels."""
    labels = {f"k{number}": "v" for number in range(count)}
    return {"metadata": {"name": "g"}, "spec": {"source": {"selector": {"matchLabels": labels}}}}


def storage_class(count: int) -> Obj:
    """A class for so many nodes."""
    expression = {"key": "k", "values": [f"n{number}" for number in range(count)]}
    more = {"volumeBindingMode": "Immediate", "reclaimPolicy": "Delete"}
    topologies = [{"matchLabelExpressions": [expression]}]
    return {"metadata": {"name": "c"}, "provisioner": "a.b", "allowedTopologies": topologies, **more}


def named(**more: Any) -> Obj:
    """Any object."""
    return {"metadata": {"name": "x"}, **more}


CASES: dict[str, tuple[str, Callable[[int], Obj], int, str]] = {
    "owners": (
        "configmaps",
        lambda n: {
            "metadata": {
                "name": "x",
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": f"u{i}"} for i in range(n)],
            }
        },
        1000,
        "metadata.ownerReferences: Too many: {}: must have at most 1000 items",
    ),
    "taints": (
        "nodes",
        lambda n: named(spec={"taints": [{"key": f"k{i}", "effect": "NoSchedule"} for i in range(n)]}),
        100,
        "spec.taints: Too many: {}: must have at most 100 items",
    ),
    "allocatable": (
        "nodes",
        lambda n: named(status={"capacity": {}, "allocatable": amounts(n)}),
        100,
        "status.allocatable: Too many: {}: must have at most 100 items",
    ),
    "limits": (
        "limitranges",
        lambda n: named(spec={"limits": [{"type": "Pod", "max": amounts(n)}]}),
        100,
        "spec.limits[0].max: Too many: {}: must have at most 100 items",
    ),
    "external": (
        "services",
        lambda n: named(spec={"ports": [{"port": 80}], "type": "ClusterIP", "externalIPs": ["10.0.0.1"] * n}),
        1000,
        "spec.externalIPs: Too many: {}: must have at most 1000 items",
    ),
    "ranges": (
        "services",
        lambda n: named(spec={"ports": [{"port": 80}], "loadBalancerSourceRanges": ["10.0.0.0/8"] * n}),
        1000,
        "spec.loadBalancerSourceRanges: Too many: {}: must have at most 1000 items",
    ),
    "quota": (
        "resourcequotas",
        lambda n: named(spec={"hard": amounts(n)}),
        1000,
        "spec.hard: Too many: {}: must have at most 1000 items",
    ),
    "group": (
        "groupsnapshot.storage.k8s.io/volumegroupsnapshots",
        group,
        100,
        "spec.source.selector: Too many: {}: must have at most 100 requirements",
    ),
    "volume": (
        "persistentvolumes",
        lambda n: volume(nodeAffinity={"required": {"nodeSelectorTerms": terms(n)}}),
        100,
        "spec.nodeAffinity.required.nodeSelectorTerms: Too many: {}: must have at most 100 requirements",
    ),
    "tolerations": (
        "pods",
        lambda n: pod(tolerations=tolerations(n)),
        500,
        "spec.tolerations: Too many: {}: must have at most 500 items",
    ),
    "volumes": (
        "pods",
        lambda n: pod(volumes=[{"name": f"v{i}", "emptyDir": {}} for i in range(n)]),
        500,
        "spec.volumes: Too many: {}: must have at most 500 items",
    ),
    "resources": ("pods", asking, 100, "spec.containers: Too many: {}: must have at most 100 resources"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_exceeds_a_bound_is_rejected_and_what_is_older_may_shrink(
    faults: Faults, case: tuple[str, Callable[[int], Obj], int, str]
) -> None:
    key, make, most, said = case
    assert faults(key, make(most)) == []
    assert faults(key, make(most + 1)) == [said.format(most + 1)]
    old = make(most + 9)
    touched = make(most + 9)
    touched["metadata"]["labels"] = {"a": "b"}
    assert faults(key, touched, old) == []
    if key in ("nodes", "configmaps", "limitranges", "resourcequotas"):  # others never change there
        assert faults(key, make(most + 5), old) == []
        assert faults(key, make(most + 10), old) == [said.format(most + 10)]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"nodeSelector": {f"k{n}": "v" for n in range(101)}}, "spec.nodeSelector: Too many: 101"),
        (
            {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms(11, 10)}}}},
            f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms: Too many: 110: must have at most 100 requirements",
        ),
        (
            {"affinity": {"nodeAffinity": {_PREFERRED: [{"weight": 1, "preference": terms(1)[0]}] * 101}}},
            f"spec.affinity.nodeAffinity.{_PREFERRED}: Too many: 101: must have at most 100 requirements",
        ),
        (
            {"affinity": near(51, 10)},
            "spec: Too many: 510: must have at most 500 requirements in the selectors of affinity terms and",
        ),
    ],
)
def test_what_pods_ask_of_nodes_and_pods_is_bounded(faults: Faults, spec: Obj, said: str) -> None:
    (found,) = faults("pods", pod(**spec))
    assert found.startswith(said)
    (found,) = faults(DS, workload(**spec_of(spec)))
    assert found.startswith(f"spec.template.{said}")


def spec_of(spec: Obj) -> Obj:
    """A workload's spec with a pod template like that."""
    template = workload()["spec"]["template"]
    return {"template": template | {"spec": template["spec"] | spec}}


def test_a_template_leaves_space_for_what_its_controller_adds(faults: Faults) -> None:
    assert faults(DS, workload(**spec_of({"tolerations": tolerations(480)}))) == []
    (found,) = faults(DS, workload(**spec_of({"tolerations": tolerations(481)})))
    assert found == "spec.template.spec.tolerations: Too many: 481: must have at most 480 items"
    named_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
    full = [term | named_node for term in terms(50, 2)]
    assert faults("pods", pod(affinity={"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": full}}})) == []


def test_a_workload_older_than_a_bound_can_be_scaled_and_released(faults: Faults) -> None:
    """Its template and its selector are what they were: neither may keep its finalizers."""
    spec = spec_of({"tolerations": tolerations(700)}) | {"replicas": 2**31 - 1}
    old = workload(**spec)
    for replicas in (2**31 - 1, 20_000):
        new = workload(**spec | {"replicas": replicas})
        assert faults("apps/statefulsets", stateful(new), stateful(old)) == []
    assert faults("apps/statefulsets", stateful(old), stateful(workload(**spec | {"replicas": 20_000})))


def stateful(obj: Obj) -> Obj:
    """As a StatefulSet."""
    more = {"serviceName": "s", "podManagementPolicy": "Parallel", "updateStrategy": {"type": "OnDelete"}}
    return obj | {"spec": obj["spec"] | more}


def test_values_are_bounded(faults: Faults) -> None:
    assert faults("storage.k8s.io/storageclasses", storage_class(1000)) == []
    said = "allowedTopologies: Too many: 1001: must have at most 1000 values"
    assert faults("storage.k8s.io/storageclasses", storage_class(1001)) == [said]
    nodes = [{"matchExpressions": [{"key": "k", "operator": "In", "values": [f"n{n}" for n in range(10_001)]}]}]
    (found,) = faults("persistentvolumes", volume(nodeAffinity={"required": {"nodeSelectorTerms": nodes}}))
    assert found.endswith("Too many: 10001: must have at most 10000 values")
