"""Services, routes and policies: good ones pass, faults are named as Kubernetes names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.makers import named

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
SERVICES, ENDPOINTS, SLICES = "services", "endpoints", "discovery.k8s.io/endpointslices"
INGRESSES, CLASSES = "networking.k8s.io/ingresses", "networking.k8s.io/ingressclasses"
POLICIES = "networking.k8s.io/networkpolicies"


def route(**path: Any) -> Obj:
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    one = {"path": "/", "pathType": "Prefix", "backend": backend} | path
    return named(spec={"rules": [{"host": "a.example.com", "http": {"paths": [one]}}]})


def policy(**rule: Any) -> Obj:
    return named(spec={"ingress": [rule]})


P = {"port": 80}
SLICE = named(addressType="IPv4", endpoints=[{"addresses": ["10.0.0.1"]}], ports=[P])


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param(SLICES, SLICE, id="slice"),
        pytest.param(INGRESSES, route(), id="ingress"),
        pytest.param(CLASSES, named(spec={"controller": "example.com/c"}), id="class"),
        pytest.param(POLICIES, policy(), id="policy"),
        pytest.param(
            POLICIES,
            policy(**{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [P]}),
            id="block",
        ),
        pytest.param(POLICIES, policy(ports=[{"port": 80, "endPort": 90}]), id="range of ports"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(SLICES, named(endpoints=[]), "addressType: Required value", id="slice's type"),
        pytest.param(
            SLICES, named(addressType="IPv4", endpoints=[{"addresses": []}]), "addresses: Required value", id="none"
        ),
        pytest.param(
            SLICES,
            named(addressType="IPv4", endpoints=[{"addresses": ["1.1.1.1"]}] * 1001),
            "endpoints: Invalid value: 1001: must have at most 1000 items",
            id="too many",
        ),
        pytest.param(SLICES, SLICE | {"ports": [P, P]}, 'ports[1].name: Duplicate value: ""', id="port twice"),
        pytest.param(INGRESSES, named(spec={}), "either `defaultBackend` or `rules` must be specified", id="no rules"),
        pytest.param(INGRESSES, route(path="x"), "must be an absolute path", id="path"),
        pytest.param(INGRESSES, route(pathType=""), "pathType: Required value", id="path's type"),
        pytest.param(INGRESSES, route(backend={}), "must specify a service or a resource backend", id="backend"),
        pytest.param(
            INGRESSES,
            route(backend={"service": {"name": "web"}}),
            "service.port: Required value: port name or number is required",
            id="backend's port",
        ),
        pytest.param(
            INGRESSES,
            named(spec={"rules": [{"host": "10.0.0.1"}]}),
            "must be a DNS name, not an IP address",
            id="host",
        ),
        pytest.param(CLASSES, named(spec={}), "spec.controller: Required value", id="controller"),
        pytest.param(
            CLASSES,
            named(spec={"controller": "a.b/c", "parameters": {"kind": "K", "name": "n", "scope": "Namespace"}}),
            "must agree with `scope`",
            id="scope",
        ),
        pytest.param(POLICIES, policy(ports=[{"endPort": 90}]), "port: Required value", id="range without begin"),
        pytest.param(POLICIES, policy(**{"from": [{}]}), "must specify a peer", id="no peer"),
        pytest.param(
            POLICIES,
            policy(**{"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}),
            "may not specify both ipBlock and another peer",
            id="two peers",
        ),
        pytest.param(
            POLICIES,
            policy(**{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]}),
            "must be a strict subset of `cidr` (10.0.0.0/8)",
            id="except",
        ),
        pytest.param(
            POLICIES,
            policy(**{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["fd00::/64"]}}]}),
            "must be a strict subset",
            id="except of another family",
        ),
    ],
)
def test_faults_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    found = faults(key, wrong)
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("key", "new", "old", "said"),
    [
        pytest.param(SLICES, SLICE | {"addressType": "IPv6"}, SLICE, "addressType: Invalid value", id="slice"),
        pytest.param(
            CLASSES,
            named(spec={"controller": "a.b/new"}),
            named(spec={"controller": "a.b/old"}),
            'spec.controller: Invalid value: "a.b/new": field is immutable',
            id="class",
        ),
    ],
)
def test_what_may_not_change(faults: Faults, key: str, new: Obj, old: Obj, said: str) -> None:
    assert any(said in line for line in faults(key, new, old))
