"""Fields of a new pod that must be right: names, name lookup, its system, restart policies of containers."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage_box.apiserver.kinds.core.validation.pod import at_creation
from tonnage_box.apiserver.validation.field_errors import Faults


def _found(spec: dict[str, Any]) -> list[tuple[str, str]]:
    faults = Faults()
    at_creation(faults, spec)
    return [(fault.field, fault.reason) for fault in faults]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"subdomain": "web", "setHostnameAsFQDN": True, "os": {"name": "windows"}},
        {"hostnameOverride": "db.example.org", "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["a.b"]}]},
        {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"], "searches": [".", "_tcp.x.", "a_b.c"]}},
        {"containers": [{"restartPolicy": "Never"}, {}], "initContainers": [{"restartPolicy": "Always"}]},
    ],
)
def test_what_is_right(spec: dict[str, Any]) -> None:
    assert _found(spec) == []


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"subdomain": "a.b"}, "spec.subdomain", "Invalid"),
        ({"hostAliases": [{"ip": "here"}]}, "spec.hostAliases[0].ip", "Invalid"),
        (
            {"hostAliases": [{"ip": "192.0.2.1", "hostnames": ["a", "b\nc"]}]},
            "spec.hostAliases[0].hostnames[1]",
            "Invalid",
        ),
        ({"hostnameOverride": "a", "hostNetwork": True}, "spec.hostnameOverride", "Forbidden"),
        ({"hostnameOverride": "a", "setHostnameAsFQDN": True}, "spec.hostnameOverride", "Forbidden"),
        ({"hostnameOverride": "a" * 65}, "spec.hostnameOverride", "TooLong"),
        ({"hostnameOverride": ""}, "spec.hostnameOverride", "Invalid"),
        ({"os": {}}, "spec.os.name", "Required"),
        ({"os": {"name": "plan9"}}, "spec.os", "NotSupported"),
        ({"containers": [{"restartPolicy": "Sometimes"}]}, "spec.containers[0].restartPolicy", "NotSupported"),
        ({"dnsPolicy": "None"}, "spec.dnsConfig", "Required"),
        ({"dnsPolicy": "None", "dnsConfig": {}}, "spec.dnsConfig.nameservers", "Required"),
        ({"dnsConfig": {"nameservers": ["192.0.2.1"] * 4}}, "spec.dnsConfig.nameservers", "Invalid"),
        ({"dnsConfig": {"nameservers": ["dns"]}}, "spec.dnsConfig.nameservers[0]", "Invalid"),
        ({"dnsConfig": {"searches": ["a"] * 33}}, "spec.dnsConfig.searches", "Invalid"),
        ({"dnsConfig": {"searches": ["a" * 200] * 11}}, "spec.dnsConfig.searches", "Invalid"),
        ({"dnsConfig": {"searches": ["a b"]}}, "spec.dnsConfig.searches[0]", "Invalid"),
        ({"dnsConfig": {"options": [{"value": "1"}]}}, "spec.dnsConfig.options[0]", "Required"),
    ],
)
def test_what_is_wrong_is_named(spec: dict[str, Any], field: str, reason: str) -> None:
    assert (field, f"FieldValue{reason}") in _found(spec)
