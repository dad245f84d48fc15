"""Issuers behind the Kubernetes API, on a real API server."""

from __future__ import annotations

import base64

import pytest
from tests.unit.csi.inline.cert.makers import compatible, issue_request

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import UnavailableError
from tonnage.csi.inline.cert.authority import make_authority, public_key_of, read_request
from tonnage.csi.inline.cert.issuers.base import CertificateDeniedError
from tonnage.csi.inline.cert.issuers.remote import (
    POD_UID,
    ROOTS,
    PublishedMap,
    SigningRequestIssuer,
    cert_manager_body,
    decode,
    fnv_word,
)
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, SIGNING_REQUESTS
from tonnage.kubernetes.client.client import Client
from tonnage_box.simulate.virtual_time import LoopClock

NAME = "tonnage-0b1e"
USAGES = {"key_usages": "digital signature,key encipherment"}


@pytest.fixture
def issuer(kube: Client) -> SigningRequestIssuer:
    return SigningRequestIssuer(kube, "tonnage.dev/ca-issuer", RealClock(), patience=0.1)


async def test_it_waits_and_asks_once(kube: Client, issuer: SigningRequestIssuer) -> None:
    request = issue_request(compatible())
    for _ in range(2):
        with pytest.raises(UnavailableError, match="request tonnage-0b1e: waiting: not approved yet"):
            await issuer.issue(request)
    (found,) = (await kube.list(SIGNING_REQUESTS)).items
    assert found.spec.signer_name == "tonnage.dev/ca-issuer"
    assert found.metadata.annotations[POD_UID] == request.pod.uid
    signed = make_authority("test", 1.8e9).sign(public_key_of(read_request(request.request)), request.wanted, 1.8e9)
    approved = {"type": "Approved", "status": "True", "reason": "x", "message": "y"}
    await kube.patch(SIGNING_REQUESTS, NAME, {"status": {"conditions": [approved]}}, subresource="approval")
    status = {"certificate": base64.b64encode(signed).decode()}
    await kube.patch(SIGNING_REQUESTS, NAME, {"status": status}, subresource="status")
    issued = await issuer.issue(request)
    assert issued.chain + issued.roots == signed


async def test_denied(kube: Client, issuer: SigningRequestIssuer) -> None:
    request = issue_request(compatible())
    with pytest.raises(UnavailableError):
        await issuer.issue(request)
    denied = {"type": "Denied", "status": "True", "reason": "NotAllowed", "message": "because"}
    await kube.patch(SIGNING_REQUESTS, NAME, {"status": {"conditions": [denied]}}, subresource="approval")
    with pytest.raises(CertificateDeniedError, match="denied: NotAllowed: because"):
        await issuer.issue(request)


def test_cert_managers_shape() -> None:
    request = issue_request({**compatible(), "example.com/team": "a"})
    body = cert_manager_body(request, "node-1")
    assert body["metadata"]["labels"]["csi.cert-manager.io/node-id-hash"] == "9bd6bbf5f"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": request.pod.name, "uid": request.pod.uid}
    assert body["metadata"]["ownerReferences"] == [owner]
    assert body["metadata"]["annotations"] == {"example.com/team": "a"}
    assert body["spec"]["issuerRef"] == {"name": "ca-issuer", "kind": "Issuer", "group": "cert-manager.io"}
    assert body["spec"]["duration"] == "7776000s"


def test_helpers() -> None:
    assert fnv_word("node-1") == "9bd6bbf5f"
    with pytest.raises(UnavailableError, match="not base64"):
        decode("%")


async def test_published_roots_are_read_once_in_five_minutes(kube: Client) -> None:
    clock = LoopClock()
    published = PublishedMap(kube, "default", clock)
    issuer = SigningRequestIssuer(kube, "tonnage.dev/ca-issuer", clock, published=published)
    assert await issuer.roots() == b""
    await kube.create(CONFIG_MAPS, {"metadata": {"name": ROOTS}, "data": {"ca-issuer": "one"}}, "default")
    assert await issuer.roots() == b""
    published._until = clock.monotonic()
    assert await issuer.roots() == b"one"
    await kube.delete(CONFIG_MAPS, ROOTS, "default")
    published._until = clock.monotonic()
    assert await issuer.roots() == b"one", "what was read before is good enough"
    assert await SigningRequestIssuer(kube, "example.com/x", clock).roots() == b""
    assert await SigningRequestIssuer(kube, "tonnage.dev/no", clock, published=published).roots() == b""
