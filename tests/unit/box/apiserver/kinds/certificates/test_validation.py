"""Requests for certificates and trust bundles."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
REQUESTS, BUNDLES = "certificates.k8s.io/certificatesigningrequests", "certificates.k8s.io/clustertrustbundles"
POD_REQUESTS = "certificates.k8s.io/podcertificaterequests"
NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "u")])


@functools.cache
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@functools.cache
def asked() -> str:
    made = x509.CertificateSigningRequestBuilder().subject_name(NAME).sign(key(), hashes.SHA256())
    return base64.b64encode(made.public_bytes(Encoding.PEM)).decode()


@functools.cache
def root() -> str:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(NAME, NAME, key().public_key(), 1, now, now + timedelta(days=9))
    return builder.sign(key(), hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def request(**spec: Any) -> Obj:
    wanted = {"request": asked(), "signerName": "example.com/s", "usages": ["client auth"]}
    return {"metadata": {"name": "u"}, "spec": wanted | spec}


def bundle(name: str = "roots", **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"trustBundle": root()} | spec}


def pod_request(**spec: Any) -> Obj:
    wanted = {"signerName": "example.com/s", "stubPKCS10Request": asked(), "podName": "p", "podUID": "u"}
    wanted |= {"nodeName": "n", "nodeUID": "u", "serviceAccountName": "s", "serviceAccountUID": "u"}
    return {"metadata": {"name": "r"}, "spec": wanted | spec}


def decided(*types: str) -> Obj:
    return request() | {"status": {"conditions": [{"type": t, "status": "True"} for t in types]}}


def test_good_ones_pass(faults: Faults) -> None:
    assert faults(REQUESTS, request(expirationSeconds=600)) == []
    assert faults(REQUESTS, decided("Approved"), request(), "approval") == []
    assert faults(BUNDLES, bundle()) == []
    assert faults(BUNDLES, bundle("example.com:s:roots", signerName="example.com/s")) == []
    assert faults(POD_REQUESTS, pod_request()) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(REQUESTS, request(request="eA=="), "spec.request: Invalid value", id="no PEM"),
        pytest.param(REQUESTS, request(request=base64.b64encode(b"-----BEGIN").decode()), "spec.request", id="half"),
        pytest.param(REQUESTS, request(signerName="s"), "spec.signerName: Invalid value", id="signer"),
        pytest.param(REQUESTS, request(signerName="a.b/c/d"), "spec.signerName: Invalid value", id="signer's path"),
        pytest.param(REQUESTS, request(usages=[]), "spec.usages: Required value", id="no usages"),
        pytest.param(REQUESTS, request(usages=["all"]), "spec.usages[0]: Unsupported value", id="usage"),
        pytest.param(REQUESTS, request(expirationSeconds=599), "less than 600 seconds", id="too short"),
        pytest.param(BUNDLES, bundle(trustBundle="x"), "spec.trustBundle: Invalid value", id="no certificates"),
        pytest.param(BUNDLES, bundle(trustBundle=root() * 2), "duplicate trust anchor", id="twice"),
        pytest.param(BUNDLES, bundle(signerName="example.com/s"), "must be named with prefix example.com:s:", id="name"),
        pytest.param(BUNDLES, bundle("a:b"), 'must not have ":" in its name', id="name without signer"),
        pytest.param(POD_REQUESTS, pod_request(podUID=""), "spec.podUID: Required value", id="uid"),
        pytest.param(POD_REQUESTS, pod_request(maxExpirationSeconds=60), "must be between 3600", id="seconds"),
    ],
)  # fmt: skip
def test_faults_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    found = faults(key, wrong)
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        pytest.param(decided("Approved", "Denied"), request(), "mutually exclusive", id="both"),
        pytest.param(decided(), decided("Approved"), "Approved conditions may not be removed", id="taken back"),
        pytest.param(decided("Approved", "Approved"), request(), "Duplicate value", id="twice"),
        pytest.param(request(usages=["signing"]), request(), "spec: Invalid value", id="another wish"),
    ],
)
def test_what_is_decided_stays(faults: Faults, new: Obj, old: Obj, said: str) -> None:
    assert any(said in line for line in faults(REQUESTS, new, old, "approval"))


def test_a_pods_request_has_one_answer(faults: Faults) -> None:
    one = {
        "type": "Issued",
        "status": "True",
        "reason": "r",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    issued = pod_request() | {"status": {"conditions": [one], "certificateChain": root()}}
    assert faults(POD_REQUESTS, issued, pod_request(), "status") == []
    both = pod_request() | {"status": {"conditions": [one, one | {"type": "Denied"}]}}
    assert any("at most one condition" in line for line in faults(POD_REQUESTS, both, pod_request(), "status"))
    assert any("status: Invalid" in line for line in faults(POD_REQUESTS, both, issued, "status"))
    alone = pod_request() | {"status": {"certificateChain": root()}}
    assert any("must be empty" in line for line in faults(POD_REQUESTS, alone, pod_request(), "status"))
