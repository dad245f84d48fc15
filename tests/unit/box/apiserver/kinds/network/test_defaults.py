"""Defaults of the kinds that are stored."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.makers import defaulted

Obj = dict[str, Any]


def test_policy_types_follow_from_the_rules() -> None:
    key = "networking.k8s.io/networkpolicies"
    assert defaulted(key)["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    spec = defaulted(key, spec={"egress": [{"ports": [{"port": 53}]}]})["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"][0]["ports"] == [{"port": 53, "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("key", "fields", "path", "value"),
    [
        pytest.param("discovery.k8s.io/endpointslices", {"ports": [{"port": 1}]}, ("ports", 0, "name"), ""),
        pytest.param(
            "networking.k8s.io/ingressclasses", {"spec": {"parameters": {}}}, ("spec", "parameters", "scope"), "Cluster"
        ),
        pytest.param("networking.k8s.io/ingresses", {}, ("status", "loadBalancer"), {}),
    ],
)
def test_small_ones(key: str, fields: Obj, path: tuple[Any, ...], value: Any) -> None:
    found: Any = defaulted(key, **fields)
    for step in path:
        found = found[step]
    assert found == value
