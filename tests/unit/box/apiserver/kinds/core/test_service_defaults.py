"""Defaults of the kinds that are stored."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.makers import defaulted

Obj = dict[str, Any]


def test_service() -> None:
    spec = defaulted("services", spec={"ports": [{"port": 80}], "sessionAffinity": "ClientIP"})["spec"]
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert spec["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}
    assert (spec["type"], spec["internalTrafficPolicy"]) == ("ClusterIP", "Cluster")
    balancer = defaulted("services", spec={"type": "LoadBalancer"})["spec"]
    assert (balancer["externalTrafficPolicy"], balancer["allocateLoadBalancerNodePorts"]) == ("Cluster", True)
    assert "internalTrafficPolicy" not in defaulted("services", spec={"type": "ExternalName"})["spec"]


def test_a_controller_selects_the_pods_of_its_template() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
    made = defaulted("replicationcontrollers", spec={"template": template})
    assert (made["spec"]["selector"], made["spec"]["replicas"]) == ({"a": "b"}, 1)
    assert made["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    ("key", "fields", "path", "value"),
    [
        pytest.param(
            "endpoints", {"subsets": [{"ports": [{"port": 1}]}]}, ("subsets", 0, "ports", 0, "protocol"), "TCP"
        ),
        pytest.param("podtemplates", {}, ("template", "spec", "restartPolicy"), "Always"),
    ],
)
def test_small_ones(key: str, fields: Obj, path: tuple[Any, ...], value: Any) -> None:
    found: Any = defaulted(key, **fields)
    for step in path:
        found = found[step]
    assert found == value
