"""Keys and certificates of podCertificate sources: requested, renewed in time, and rejected for good."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from tests.unit.controller.certificates.pod_certificates import pod_body

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiError, UnsupportedError
from tonnage.controller.certificates.pod_requests import check_pod_request, issued_status, public_key
from tonnage.csi.inline.cert.authority import make_authority, read_certificates
from tonnage.csi.inline.cert.keys import make_key, public_bytes, read_key
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.kubernetes.api.certificate import PodCertificateRequest
from tonnage.kubernetes.api.kinds import NODES, POD_CERTIFICATE_REQUESTS, PODS, SERVICE_ACCOUNTS
from tonnage.kubernetes.api.pods import Pod, PodCertificateProjection, PodSpec
from tonnage.kubernetes.client.client import Client
from tonnage_box.kubelet.volumes.csi_volumes import MountError
from tonnage_box.kubelet.volumes.pod_certificates import Credential, PodCertificates

SOURCE = PodCertificateProjection(signer_name="tonnage.dev/internal", key_type="ECDSAP256", max_expiration_seconds=7200)
NOW = time.time()
AUTHORITY = make_authority("internal", NOW)


class _Node:
    """One pod's certificates on a node, and a signer that answers when it is told to."""

    def __init__(self, kube: Client, pod: Pod) -> None:
        self.kube, self.pod, self.now = kube, pod, NOW
        self.warned: list[str] = []
        self.certificates = PodCertificates(kube, "n1", now=lambda: self.now)
        self.certificates.warn = lambda pod, reason, text: self.warned.append(reason)

    async def shown(self, source: PodCertificateProjection = SOURCE) -> Credential:
        return await self.certificates.shown(self.pod, "tls", 0, source)

    async def requests(self) -> list[PodCertificateRequest]:
        return (await self.kube.list(POD_CERTIFICATE_REQUESTS, "default")).items

    async def answer(self, kind: str, *, key: Any = None, **status: str) -> None:
        (request,) = await self.requests()
        condition = {"type": kind, "status": "True", "reason": "Why", "message": "because"}
        body = {"conditions": [{**condition, "lastTransitionTime": rfc3339(self.now)}], **status}
        if kind == "Issued":
            wanted, public = check_pod_request(request, self.pod, NamePolicy())
            chain = AUTHORITY.sign(key or public, wanted, self.now)
            body = {**body, **issued_status("internal", chain)}
        await self.kube.patch(
            POD_CERTIFICATE_REQUESTS, request.metadata.name, {"status": body}, "default", subresource="status"
        )


@pytest.fixture
async def node(kube: Client) -> _Node:
    await kube.create(NODES, {"metadata": {"name": "n1"}})
    await kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, "default")
    return _Node(kube, await kube.create(PODS, pod_body(maxExpirationSeconds=7200), "default"))


async def issued(node: _Node) -> Credential:
    with pytest.raises(MountError, match="has no answer yet"):
        await node.shown()
    await node.answer("Issued")
    return await node.shown()


async def test_a_pod_waits_for_the_answer_to_its_one_request(node: _Node) -> None:
    for _ in range(2):
        with pytest.raises(MountError, match=r'"tls" : PodCertificateRequest default/req-\w+ to \S+ has') as raised:
            await node.shown()
        assert raised.value.waiting
    (request,) = await node.requests()
    assert raised.value.topic == f"podcertificaterequest {request.key}"
    assert [(one.kind, one.uid) for one in request.metadata.owner_references] == [("Pod", node.pod.metadata.uid)]
    assert (request.spec.pod_uid, request.spec.node_name) == (node.pod.metadata.uid, "n1")
    assert request.spec.max_expiration_seconds == 7200
    await node.answer("Issued")
    shown = await node.shown()
    leaf = read_certificates(shown.chain)[0]
    leaf.verify_directly_issued_by(AUTHORITY.chain[0])
    assert public_bytes(leaf.public_key()) == public_bytes(read_key(shown.key).public_key())
    assert "BEGIN" not in repr(shown).split("chain=")[0]
    assert await node.shown() == shown
    assert len(await node.requests()) == 1


@pytest.mark.parametrize(
    ("word", "kind", "bits"),
    [
        ("RSA3072", rsa.RSAPublicKey, 3072),
        ("ECDSAP521", ec.EllipticCurvePublicKey, 521),
        ("ED25519", ed25519.Ed25519PublicKey, 0),
    ],
)
async def test_types_of_keys(node: _Node, word: str, kind: type, bits: int) -> None:
    with pytest.raises(MountError):
        await node.shown(PodCertificateProjection(signer_name="tonnage.dev/internal", key_type=word))
    key = public_key((await node.requests())[0].spec)
    assert isinstance(key, kind)
    assert getattr(key, "key_size", 0) == bits


async def test_an_unknown_type_of_key_is_named(node: _Node) -> None:
    with pytest.raises(UnsupportedError, match="keyType 'DSA': there is RSA3072, RSA4096, ECDSAP256"):
        await node.shown(PodCertificateProjection(signer_name="a.b/c", key_type="DSA"))
    assert await node.requests() == []


async def test_it_is_renewed_in_time_and_shows_the_old_one_until_the_answer(node: _Node) -> None:
    first = await issued(node)
    assert node.certificates.wait(node.pod, "tls", 0) == pytest.approx(first.refresh_at - NOW)
    node.now = first.refresh_at - 1
    assert await node.shown() == first
    (former,) = await node.requests()
    node.now = first.refresh_at
    assert await node.shown() == first
    (request,) = await node.requests()
    assert request.metadata.name != former.metadata.name
    assert node.certificates.wait(node.pod, "tls", 0) == 300
    await node.answer("Issued")
    second = await node.shown()
    assert second.key != first.key
    assert second.ends > first.ends
    assert node.warned == []


async def test_a_late_renewal_is_reported_once(node: _Node) -> None:
    first = await issued(node)
    node.now = first.refresh_at + 600
    assert await node.shown() == first
    node.now = first.ends
    for _ in range(2):
        assert await node.shown() == first
    assert node.warned == ["CertificateOverdueForRefresh", "CertificateExpired"]


@pytest.mark.parametrize(("kind", "how"), [("Denied", "was denied"), ("Failed", "failed")])
async def test_a_rejection_is_final(node: _Node, kind: str, how: str) -> None:
    with pytest.raises(MountError):
        await node.shown()
    await node.answer(kind)
    for _ in range(2):
        with pytest.raises(MountError, match=f"{how}, reason='Why', message='because'") as raised:
            await node.shown()
        assert not raised.value.waiting
    assert len(await node.requests()) == 1
    assert node.warned == [kind]


async def test_a_rejected_renewal_leaves_the_old_one(node: _Node) -> None:
    first = await issued(node)
    node.now = first.refresh_at
    await node.shown()
    await node.answer("Denied")
    assert await node.shown() == first
    assert node.warned == ["Denied"]


async def test_a_certificate_of_another_key_is_not_shown(node: _Node) -> None:
    with pytest.raises(MountError):
        await node.shown()
    await node.answer("Issued", key=make_key("ECDSA", 256).public_key())
    with pytest.raises(MountError, match="cannot be used: it is not one of the pod's key"):
        await node.shown()


async def test_a_deleted_request_is_made_anew(node: _Node) -> None:
    with pytest.raises(MountError):
        await node.shown()
    (request,) = await node.requests()
    await node.kube.delete(POD_CERTIFICATE_REQUESTS, request.metadata.name, "default")
    with pytest.raises(MountError):
        await node.shown()
    (again,) = await node.requests()
    assert again.metadata.name != request.metadata.name


async def test_a_renewal_is_at_most_each_five_minutes_whatever_the_signer_says(node: _Node) -> None:
    with pytest.raises(MountError):
        await node.shown()
    (request,) = await node.requests()
    wanted, public = check_pod_request(request, node.pod, NamePolicy())
    chain = AUTHORITY.sign(public, wanted, NOW)
    status = {**issued_status("internal", chain), "beginRefreshAt": rfc3339(NOW - 60)}
    condition = {"type": "Issued", "status": "True", "reason": "x", "lastTransitionTime": rfc3339(NOW)}
    body = {"status": {**status, "conditions": [condition]}}
    await node.kube.patch(POD_CERTIFICATE_REQUESTS, request.metadata.name, body, "default", subresource="status")
    assert (await node.shown()).refresh_at == pytest.approx(NOW + 300)


async def test_without_an_account_nothing_is_requested(node: _Node) -> None:
    node.pod = Pod(metadata=node.pod.metadata, spec=PodSpec(service_account_name="none"))
    with pytest.raises(ApiError, match="none"):
        await node.shown()
    node.certificates.forget(node.pod.metadata.uid)
    assert await node.requests() == []
