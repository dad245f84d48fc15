"""What kubectl get prints of services, routes and autoscalers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.apps.test_columns import cells

Obj = dict[str, Any]
SLICES = "discovery.k8s.io/endpointslices"
IPS = [{"ip": f"10.0.0.{n}"} for n in range(5)]


@pytest.mark.parametrize(
    ("spec", "status", "shown"),
    [
        pytest.param({"type": "ClusterIP", "clusterIPs": ["10.96.0.9"]}, {}, ("10.96.0.9", "<none>"), id="plain"),
        pytest.param({"type": "LoadBalancer"}, {}, ("<none>", "<pending>"), id="pending"),
        pytest.param(
            {"type": "LoadBalancer", "externalIPs": ["2.2.2.2"]},
            {"loadBalancer": {"ingress": [{"hostname": "a-long-name.example.com"}]}},
            ("<none>", "a-long-name.e...,2.2.2.2"),
            id="served",
        ),
        pytest.param({"type": "ExternalName", "externalName": "a.b"}, {}, ("<none>", "a.b"), id="external"),
    ],
)
def test_service(spec: Obj, status: Obj, shown: tuple[str, str]) -> None:
    ports = [{"port": 80, "protocol": "TCP", "nodePort": 30001}, {"port": 53, "protocol": "UDP"}]
    found = cells("services", spec=spec | {"ports": ports, "selector": {"b": "1", "a": "2"}}, status=status)
    assert (found["Cluster-IP"], found["External-IP"]) == shown
    assert (found["Port(s)"], found["Selector"]) == ("80:30001/TCP,53/UDP", "a=2,b=1")


def test_endpoints() -> None:
    subset = {"addresses": IPS, "ports": [{"port": 80}]}
    assert cells("endpoints", subsets=[subset])["Endpoints"] == "10.0.0.0:80,10.0.0.1:80,10.0.0.2:80 + 2 more..."
    assert cells("endpoints", subsets=[{"addresses": [{"ip": "fd00::1"}]}])["Endpoints"] == "fd00::1"
    assert cells("endpoints")["Endpoints"] == "<none>"
    found = cells(SLICES, addressType="IPv4", endpoints=[{"addresses": ["10.0.0.1"]}], ports=[{"port": 1}, {}])
    assert (found["Ports"], found["Endpoints"]) == ("1,*", "10.0.0.1")


def test_controller_and_template() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    found = cells("replicationcontrollers", spec={"template": template, "selector": {"a": "b"}})
    assert (found["Desired"], found["Images"], found["Selector"]) == (3, "i", "a=b")
    assert cells("podtemplates", template=template)["Pod Labels"] == "a=b"
