"""Defaults of the kinds that are stored."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage_box.apiserver.registry.resources import RESOURCES

Obj = dict[str, Any]


def defaulted(key: str, **fields: Any) -> Obj:
    obj: Obj = {"metadata": {"name": "x"}} | fields
    RESOURCES[key].default(obj)
    return obj


def test_service() -> None:
    spec = defaulted("services", spec={"ports": [{"port": 80}], "sessionAffinity": "ClientIP"})["spec"]
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert spec["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}
    assert (spec["type"], spec["internalTrafficPolicy"]) == ("ClusterIP", "Cluster")
    balancer = defaulted("services", spec={"type": "LoadBalancer"})["spec"]
    assert (balancer["externalTrafficPolicy"], balancer["allocateLoadBalancerNodePorts"]) == ("Cluster", True)
    assert "internalTrafficPolicy" not in defaulted("services", spec={"type": "ExternalName"})["spec"]


def test_policy_types_follow_from_the_rules() -> None:
    key = "networking.k8s.io/networkpolicies"
    assert defaulted(key)["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    spec = defaulted(key, spec={"egress": [{"ports": [{"port": 53}]}]})["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"][0]["ports"] == [{"port": 53, "protocol": "TCP"}]


def test_a_controller_selects_the_pods_of_its_template() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
    made = defaulted("replicationcontrollers", spec={"template": template})
    assert (made["spec"]["selector"], made["spec"]["replicas"]) == ({"a": "b"}, 1)
    assert made["metadata"]["labels"] == {"a": "b"}


def test_an_autoscaler_looks_at_cpu() -> None:
    spec = defaulted("autoscaling/horizontalpodautoscalers", spec={"maxReplicas": 3})["spec"]
    assert spec["minReplicas"] == 1
    assert spec["metrics"][0]["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}


@pytest.mark.parametrize(
    ("key", "fields", "path", "value"),
    [
        pytest.param(
            "endpoints", {"subsets": [{"ports": [{"port": 1}]}]}, ("subsets", 0, "ports", 0, "protocol"), "TCP"
        ),
        pytest.param("discovery.k8s.io/endpointslices", {"ports": [{"port": 1}]}, ("ports", 0, "name"), ""),
        pytest.param(
            "networking.k8s.io/ingressclasses", {"spec": {"parameters": {}}}, ("spec", "parameters", "scope"), "Cluster"
        ),
        pytest.param("networking.k8s.io/ingresses", {}, ("status", "loadBalancer"), {}),
        pytest.param("podtemplates", {}, ("template", "spec", "restartPolicy"), "Always"),
    ],
)
def test_small_ones(key: str, fields: Obj, path: tuple[Any, ...], value: Any) -> None:
    found: Any = defaulted(key, **fields)
    for step in path:
        found = found[step]
    assert found == value
