"""Services, routes and policies: good ones pass, faults are named as Kubernetes names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.makers import named

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
SERVICES, ENDPOINTS, SLICES = "services", "endpoints", "discovery.k8s.io/endpointslices"


def service(*ports: Obj, **spec: Any) -> Obj:
    return named(spec={"ports": list(ports)} | spec)


P = {"port": 80}


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param(SERVICES, service(P), id="service"),
        pytest.param(SERVICES, named(spec={"clusterIP": "None"}), id="headless without ports"),
        pytest.param(SERVICES, named(spec={"type": "ExternalName", "externalName": "a.b."}), id="external name"),
        pytest.param(SERVICES, service(P | {"nodePort": 30001}, type="NodePort"), id="node port"),
        pytest.param(ENDPOINTS, named(subsets=[{"addresses": [{"ip": "fd00::1"}], "ports": [P]}]), id="endpoints"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(SERVICES, named(spec={}), "spec.ports: Required value", id="no ports"),
        pytest.param(SERVICES, service(P, type="X"), "spec.type: Unsupported value", id="type"),
        pytest.param(
            SERVICES, service({"port": 0}), "spec.ports[0].port: Invalid value: 0: must be between", id="port"
        ),
        pytest.param(SERVICES, service(P, {"port": 81, "name": "b"}), "spec.ports[0].name: Required value", id="name"),
        pytest.param(SERVICES, service(P | {"name": "A"}), "spec.ports[0].name: Invalid value", id="name's form"),
        pytest.param(
            SERVICES,
            service(P | {"name": "a"}, P | {"name": "b"}),
            'spec.ports[1]: Duplicate value: {"protocol":"TCP","port":80}',
            id="twice",
        ),
        pytest.param(
            SERVICES,
            service(P | {"nodePort": 30001}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
            id="node port without type",
        ),
        pytest.param(
            SERVICES,
            service(
                P | {"nodePort": 30001, "name": "a"}, {"port": 81, "nodePort": 30001, "name": "b"}, type="NodePort"
            ),
            "spec.ports[1].nodePort: Duplicate value: 30001",
            id="node port twice",
        ),
        pytest.param(
            SERVICES,
            service(P, clusterIP="None", type="LoadBalancer"),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for LoadBalancer services",
            id="headless balancer",
        ),
        pytest.param(SERVICES, service(P, clusterIPs=["x"], clusterIP="x"), "must be a valid IP address", id="address"),
        pytest.param(
            SERVICES, named(spec={"type": "ExternalName"}), "spec.externalName: Required value", id="external"
        ),
        pytest.param(SERVICES, service(P, externalIPs=["x"]), "spec.externalIPs[0]: Invalid value", id="external IP"),
        pytest.param(SERVICES, service(P | {"targetPort": "Web"}), "spec.ports[0].targetPort: Invalid", id="target"),
        pytest.param(SERVICES, service(P, selector={"a b": "c"}), "spec.selector: Invalid value", id="selector"),
        pytest.param(
            SERVICES, service(P, sessionAffinity="X"), "spec.sessionAffinity: Unsupported value", id="affinity"
        ),
        pytest.param(ENDPOINTS, named(subsets=[{"ports": [P]}]), "subsets[0]: Required value", id="no addresses"),
        pytest.param(
            ENDPOINTS, named(subsets=[{"addresses": [{"ip": "x"}]}]), "subsets[0].addresses[0].ip: Invalid", id="bad ip"
        ),
    ],
)
def test_faults_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    found = faults(key, wrong)
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("key", "new", "old", "said"),
    [
        pytest.param(
            SERVICES,
            service(P, clusterIP="10.96.0.9"),
            service(P, clusterIP="10.96.0.8"),
            'spec.clusterIPs[0]: Invalid value: "10.96.0.9": field is immutable',
            id="service",
        ),
    ],
)
def test_what_may_not_change(faults: Faults, key: str, new: Obj, old: Obj, said: str) -> None:
    assert any(said in line for line in faults(key, new, old))
