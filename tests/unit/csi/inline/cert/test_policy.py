"""What an issuer certifies."""

from __future__ import annotations

import pytest
from tests.unit.csi.inline.cert.makers import compatible, pod

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.attributes import COMPATIBLE
from tonnage.csi.inline.cert.policy import NamePolicy, check_policy
from tonnage.csi.inline.cert.wanted import wanted_certificate

REJECTED = [
    {"dns_names": "kubernetes.default.svc"},
    {"dns_names": "a.b.other.svc.cluster.local"},
    {"dns_names": "sandbox.svc"},
    {"dns_names": "evilsandbox.svc"},
    {"dns_names": "example.com"},
    {"dns_names": "*"},
    {"uri_sans": "spiffe://cluster.local/ns/other/sa/default"},
    {"uri_sans": "spiffe://cluster.local/ns/sandbox/sa/default2"},
    {"uri_sans": "spiffe://cluster.local/ns/sandbox/sa/default/../../../x"},
    {"uri_sans": "spiffe://x.other.cluster.local"},
    {"uri_sans": "https://my-service"},
    {"ip_sans": "10.0.0.9"},
    {"common_name": "system:admin"},
    {"common_name": "$POD_NAME"},
    {"organizations": "system:masters"},
    {"is_ca": "true"},
    {"key_usages": "cert sign"},
    {"key_usages": "code signing"},
    {"duration": "2161h"},
    {"duration": "9m"},
    {"dns_names": "", "uri_sans": ""},
]
ALLOWED = [
    {},
    {"uri_sans": "spiffe://my-service.sandbox.cluster.local"},
    {"common_name": "$POD_NAME.a.sandbox.svc", "dns_names": "${POD_NAME}.a.sandbox.svc,*.sandbox.svc,1-2-3-4.sandbox.pod.cluster.local"},
    {"ip_sans": "10.0.0.7", "key_usages": "server auth,client auth,digital signature"},
]  # fmt: skip


def check(values: dict[str, str], policy: NamePolicy) -> None:
    wanted = wanted_certificate(compatible(**values), pod(), COMPATIBLE)
    check_policy(wanted, pod(addresses=("10.0.0.7",)), policy)


@pytest.mark.parametrize("values", REJECTED)
def test_rejected(values: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match="issuer ca-issuer: not allowed: "):
        check(values, NamePolicy())


@pytest.mark.parametrize("values", ALLOWED)
def test_allowed(values: dict[str, str]) -> None:
    check(values, NamePolicy())


def test_lists() -> None:
    allow = ("dns:*.example.com", "uri:https://a/*", "ip:10.1.0.0/16", "subject:O=Ex*", "usage:code signing")
    policy = NamePolicy(allow=allow, is_ca=True, longest=1e9)
    names = {"dns_names": "x.example.com", "uri_sans": "https://a/b", "ip_sans": "10.1.2.3", "organizations": "Example"}
    check({**names, "is_ca": "true", "key_usages": "cert sign,code signing", "duration": "9000h"}, policy)
    with pytest.raises(InvalidError, match="want a network"):
        NamePolicy(allow=("ip:nowhere",))
    with pytest.raises(InvalidError, match="want KIND:PATTERN"):
        NamePolicy(allow=("x",))
