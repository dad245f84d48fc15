"""Addresses and node ports of Services: unique, in range, and kept."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

from tonnage_box.apiserver.kinds.core import service as services
from tonnage_box.apiserver.storage.store import StoredObject

PROTOCOLS = ("TCP", "UDP", "SCTP")
Obj = dict[str, Any]
SERVICES = "/api/v1/namespaces/default/services"


def service(name: str = "s", *, ports: int = 1, **spec: Any) -> Obj:
    made = [{"name": f"p{n}", "port": 80 + n} for n in range(ports)]
    return {"metadata": {"name": name}, "spec": {"ports": made, **spec}}


async def test_each_service_has_an_address_of_its_own(api: Api) -> None:
    found = [(await api.create(SERVICES, service(f"s{n}")))["spec"] for n in range(300)]
    addresses = [spec["clusterIP"] for spec in found]
    assert len(set(addresses)) == 300
    assert all(ipaddress.ip_address(a) in services.ADDRESSES for a in addresses)
    assert all(spec["clusterIPs"] == [spec["clusterIP"]] for spec in found)
    assert {(spec["type"], spec["ipFamilies"][0], spec["sessionAffinity"]) for spec in found} == {
        ("ClusterIP", "IPv4", "None")
    }


async def test_a_service_made_anew_has_its_address_again(api: Api) -> None:
    before = (await api.create(SERVICES, service()))["spec"]["clusterIP"]
    await api.delete(f"{SERVICES}/s")
    assert (await api.create(SERVICES, service()))["spec"]["clusterIP"] == before


async def test_headless_and_external_ones_have_none(api: Api) -> None:
    assert (await api.create(SERVICES, service("h", clusterIP="None")))["spec"]["clusterIPs"] == ["None"]
    made = await api.create(SERVICES, service("e", type="ExternalName", externalName="example.com"))
    assert "clusterIP" not in made["spec"]


async def test_a_balancer_has_node_ports_and_no_ingress(api: Api) -> None:
    made = await api.create(SERVICES, service(type="LoadBalancer", ports=2) | {"status": {"loadBalancer": {"x": 1}}})
    numbers = [port["nodePort"] for port in made["spec"]["ports"]]
    assert len(set(numbers)) == 2
    assert set(numbers) <= set(services.NODE_PORTS)
    assert made["status"] == {"loadBalancer": {}}


async def test_an_update_keeps_what_it_leaves_out(api: Api) -> None:
    made = await api.create(SERVICES, service(type="NodePort"))
    again = await api.put(f"{SERVICES}/s", service(type="NodePort", selector={"a": "b"}))
    assert again["spec"] == made["spec"] | {"selector": {"a": "b"}}
    plain = await api.put(f"{SERVICES}/s", service())
    assert "nodePort" not in plain["spec"]["ports"][0]
    assert plain["spec"]["clusterIP"] == made["spec"]["clusterIP"]
    await api.put(f"{SERVICES}/s", service(type="ExternalName", externalName="example.com"))
    assert (await api.put(f"{SERVICES}/s", service()))["spec"]["clusterIP"] == made["spec"]["clusterIP"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(
            service("b", clusterIP="10.96.7.7"),
            'spec.clusterIPs: Invalid value: ["10.96.7.7"]: failed to allocate IP 10.96.7.7: '
            "provided IP is already allocated",
            id="taken",
        ),
        pytest.param(service("b", clusterIP="1.2.3.4"), "The range of valid IPs is 10.96.0.0/16", id="elsewhere"),
        pytest.param(service("b", clusterIP="fd00::1"), "is not in the valid range", id="IPv6"),
        pytest.param(
            {"metadata": {"name": "b"}, "spec": {"type": "NodePort", "ports": [{"port": 1, "nodePort": 30007}]}},
            "provided port is already allocated",
            id="port taken",
        ),
        pytest.param(
            {"metadata": {"name": "b"}, "spec": {"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}},
            "The range of valid ports is 30000-32767",
            id="port elsewhere",
        ),
    ],
)
async def test_what_is_taken_or_out_of_range_is_rejected(api: Api, wrong: Obj, said: str) -> None:
    ports = [{"port": 80, "nodePort": 30007}]
    first = {"metadata": {"name": "a"}, "spec": {"clusterIP": "10.96.7.7", "type": "NodePort", "ports": ports}}
    await api.create(SERVICES, first)
    assert said in (await api.create(SERVICES, wrong, want=422))["message"]


async def test_full_ranges_are_reported(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "ADDRESSES", ipaddress.IPv4Network("10.96.0.0/29"))
    monkeypatch.setattr(services, "NODE_PORTS", range(30000, 30002))
    for n in range(5):
        await api.create(SERVICES, service(f"s{n}", type="NodePort" if n < 2 else "ClusterIP"))
    assert "is full" in (await api.create(SERVICES, service("s5"), want=403))["message"]
    await api.delete(f"{SERVICES}/s4")
    assert "node ports is full" in (await api.create(SERVICES, service("s6", type="NodePort"), want=403))["message"]


async def test_quota_counts_services(api: Api) -> None:
    hard = {"services": "2", "services.loadbalancers": "1", "services.nodeports": "1"}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}}
    await api.create("/api/v1/namespaces/default/resourcequotas", quota)
    await api.create(SERVICES, service("a", type="LoadBalancer"))
    assert "exceeded quota" in (await api.create(SERVICES, service("b", type="NodePort"), want=403))["message"]
    await api.create(SERVICES, service("b"))
    assert "exceeded quota" in (await api.create(SERVICES, service("c"), want=403))["message"]


class Counted(Sequence[int]):
    """The node ports; steps: how many were looked at."""

    def __init__(self) -> None:
        self.steps = 0
        self._ports = services.NODE_PORTS

    def __getitem__(self, index: Any) -> Any:
        self.steps += 1
        return self._ports[index]

    def __len__(self) -> int:
        return len(self._ports)


async def test_no_node_port_is_looked_at_twice(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    monkeypatch.setattr(services, "NODE_PORTS", counted)
    each = len(counted) - 68
    ports = [{"name": f"p{n}", "port": 1 + n // 3, "protocol": PROTOCOLS[n % 3]} for n in range(3 * each)]
    made = await api.create(
        SERVICES, service() | {"spec": {"type": "NodePort", "ports": ports}}, query={"dryRun": "All"}
    )
    numbers = {(port["protocol"], port["nodePort"]) for port in made["spec"]["ports"]}
    assert len(numbers) == 3 * each == 8100
    assert counted.steps <= 3 * len(counted)
    ports = [{"name": f"p{n}", "port": 1 + n} for n in range(len(counted) + 1)]
    rejected = await api.create(SERVICES, service() | {"spec": {"type": "NodePort", "ports": ports}}, want=403)
    assert "the range of node ports is full" in rejected["message"]
    assert counted.steps <= 4 * len(counted)


async def test_an_address_is_found_without_reading_the_other_services(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        await api.create(SERVICES, service(f"s{number}"))
    decoded = 0
    plain = StoredObject.decode

    def counted(record: StoredObject) -> Obj:
        nonlocal decoded
        decoded += 1
        return plain(record)

    monkeypatch.setattr(StoredObject, "decode", counted)
    await api.create(SERVICES, service("one"))
    assert decoded < 10
