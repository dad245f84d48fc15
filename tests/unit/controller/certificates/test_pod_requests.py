"""PodCertificateRequests are signed for what the pod's own text asks, and denied for good otherwise."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec
from tests.unit.controller.certificates.pod_certificates import (
    SIGNER,
    VersionedTransport,
    pod_body,
    request_body,
    stub,
)
from tests.unit.controller.contexts import context

from tonnage.base.aio.clock import RealClock, parse_rfc3339
from tonnage.base.errors import UnavailableError
from tonnage.controller.certificates.authority_folder import AuthorityFolder
from tonnage.controller.certificates.pod_requests import (
    PodCertificateRejectedError,
    PodCertificateSigner,
    check_pod_request,
    issued_status,
    public_key,
)
from tonnage.controller.config import SigningConfig
from tonnage.csi.inline.cert.authority import (
    CertificateAuthority,
    make_authority,
    pem_of,
    read_certificates,
    secret_data,
)
from tonnage.csi.inline.cert.keys import make_key, public_bytes
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.kubernetes.api.certificate import PodCertificateRequest
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.kinds import POD_CERTIFICATE_REQUESTS, PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing import apiserver

POLICY = NamePolicy(allow=("subject:O=Example",))
Running = Callable[..., AbstractAsyncContextManager[None]]


def pod_of(*, phase: str = "Pending", **more: Any) -> Pod:
    body = pod_body(**more)
    body["metadata"] |= {"namespace": "default", "uid": "uid-1"}
    return convert({**body, "status": {"phase": phase}}, Pod)


def request_of(**spec: Any) -> PodCertificateRequest:
    return convert(request_body(spec.pop("podUID", "uid-1"), **spec), PodCertificateRequest)


def names_of(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(one.value) for one in found]


def test_without_annotations_it_names_the_account() -> None:
    wanted, _ = check_pod_request(request_of(), pod_of(), POLICY)
    assert [name.value for name in wanted.names] == ["spiffe://cluster.local/ns/default/sa/default"]
    assert wanted.seconds == 86400 - 120


ANNOTATIONS = {"cert.tonnage.dev/dns-names": "web.default.svc", "cert.tonnage.dev/organizations": "Example"}


def test_annotations_of_the_pod_give_names() -> None:
    request = request_of(unverifiedUserAnnotations=ANNOTATIONS)
    wanted, _ = check_pod_request(request, pod_of(userAnnotations=ANNOTATIONS), POLICY)
    assert [name.value for name in wanted.names] == ["web.default.svc"]
    assert wanted.subject.rfc4514_string() == "O=Example"


def test_a_life_longer_than_the_policys_is_shortened() -> None:
    request = request_of(maxExpirationSeconds=7862400)
    wanted, _ = check_pod_request(request, pod_of(maxExpirationSeconds=7862400), NamePolicy(longest=86400.0 * 30))
    assert wanted.seconds == 86400 * 30 - 120


def given(**annotations: str) -> dict[str, str]:
    return {f"cert.tonnage.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}


DENIED: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("a former pod", {"podUID": "uid-0"}, {}, "NotAllowed", "another one"),
    ("a pod of another node", {"nodeName": "n2"}, {}, "NotAllowed", "not on node n2"),
    ("a pod that is not placed", {"nodeName": ""}, {"node": ""}, "NotAllowed", "not on node"),
    ("another account", {"serviceAccountName": "root"}, {}, "NotAllowed", "service account root"),
    ("a pod that has ended", {}, {"phase": "Failed"}, "NotAllowed", "has ended"),
    ("a pod that asks another signer", {}, {"signer": "example.com/x"}, "NotAllowed", "no such podCertificate"),
    ("other annotations than the pod's", {"unverifiedUserAnnotations": given(dns_names="a.default.svc")}, {}, "NotAllowed", "no such podCertificate"),
    ("a longer life than the pod's", {"maxExpirationSeconds": 90000}, {}, "NotAllowed", "no such podCertificate"),
    ("names of another namespace", given(dns_names="a.kube-system.svc"), {}, "NotAllowed", "dns"),
    ("the administrators' group", given(organizations="system:masters"), {}, "NotAllowed", "subject"),
    ("an authority", given(is_ca="true"), {}, "InvalidUnverifiedUserAnnotations", "is-ca': unknown; known are cert.tonnage.dev/common-name"),
    ("a duration of its own", given(duration="99999h"), {}, "InvalidUnverifiedUserAnnotations", "unknown"),
    ("a foreign annotation", {"example.com/dns-names": "x"}, {}, "InvalidUnverifiedUserAnnotations", "unknown"),
    ("an unknown variable", given(dns_names="$HOME"), {}, "InvalidUnverifiedUserAnnotations", "undefined variable"),
    ("10 kB of a name", given(dns_names="x" * 10000), {}, "InvalidUnverifiedUserAnnotations", "want DNS names"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "pod", "reason", "text"), [row[1:] for row in DENIED], ids=[row[0] for row in DENIED])
def test_denied(spec: dict[str, Any], pod: dict[str, Any], reason: str, text: str) -> None:
    if any("/" in key for key in spec):  # annotations that pod and request share
        spec, pod = {"unverifiedUserAnnotations": spec}, {**pod, "userAnnotations": spec}
    with pytest.raises(PodCertificateRejectedError, match=text) as raised:
        check_pod_request(request_of(**spec), pod_of(**pod), POLICY)
    assert raised.value.reason == reason


def test_keys() -> None:
    for algorithm, size in (("RSA", 3072), ("ECDSA", 384), ("Ed25519", 0)):
        key = make_key(algorithm, size)
        assert public_bytes(public_key(request_of(key=key).spec)) == public_bytes(key.public_key())
    key = make_key("ECDSA", 256)
    pkix = base64.b64encode(public_bytes(key.public_key())).decode()
    old = request_of(stubPKCS10Request="", pkixPublicKey=pkix)
    assert public_bytes(public_key(old.spec)) == public_bytes(key.public_key())


@pytest.mark.parametrize(
    "text",
    [
        "%",
        base64.b64encode(b"x").decode(),
        base64.b64encode(
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .sign(dsa.generate_private_key(1024), hashes.SHA256())
            .public_bytes(serialization.Encoding.DER)
        ).decode(),
    ],
)
def test_a_key_that_we_do_not_sign_for(text: str) -> None:
    with pytest.raises(PodCertificateRejectedError) as raised:
        public_key(request_of(stubPKCS10Request=text).spec)
    assert raised.value.reason == "UnsupportedKeyType"


def test_an_authority_that_ends_within_the_hour() -> None:
    authority = make_authority("test", 1.8e9)
    wanted, public = check_pod_request(request_of(), pod_of(), POLICY)
    end = authority.chain[0].not_valid_after_utc.timestamp()
    chain = authority.sign(public, wanted, end - 3000)
    with pytest.raises(UnavailableError, match="issuer internal: its own certificate ends in less than an hour"):
        issued_status("internal", chain)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    made = make_authority("test", RealClock().time())
    for name, data in secret_data(made).items():
        (tmp_path / name).write_bytes(data)
    return made


@pytest.fixture
async def signer(kube: Client, informers: Informers, tmp_path: Path) -> PodCertificateSigner:
    return PodCertificateSigner(
        context(kube, informers, certificate_issuers={"internal": SigningConfig(AuthorityFolder(tmp_path), POLICY)})
    )


async def answered(kube: Client, name: str) -> PodCertificateRequest:
    async with asyncio.timeout(20):
        while not (found := await kube.get(POD_CERTIFICATE_REQUESTS, name, "default")).status.conditions:
            await asyncio.sleep(0.01)
    return found


async def test_a_kubelet_gets_its_pods_certificate(
    kube: Client, signer: PodCertificateSigner, authority: CertificateAuthority, running: Running
) -> None:
    pod = await kube.create(PODS, pod_body(), "default")
    key = make_key("ECDSA", 256)
    body = request_body(pod.metadata.uid, key)
    async with running(signer):
        made = await kube.create(POD_CERTIFICATE_REQUESTS, body, "default")
        found = await answered(kube, made.metadata.name)
    assert [(one.type, one.reason) for one in found.status.conditions] == [("Issued", "PodVolume")]
    (leaf,) = read_certificates(found.status.certificate_chain.encode())
    leaf.verify_directly_issued_by(authority.chain[0])
    assert public_bytes(leaf.public_key()) == public_bytes(key.public_key())
    assert names_of(leaf) == ["spiffe://cluster.local/ns/default/sa/default"]


@pytest.mark.parametrize("versions", [("v1",), ("v1", "v1beta1"), ("v1beta1",)])
async def test_the_newest_version_that_the_server_has_is_used(
    api_server: ApiServer, authority: CertificateAuthority, running: Running, tmp_path: Path, versions: tuple[str, ...]
) -> None:
    transport = VersionedTransport(api_server.transport(), versions)
    newer, kube = Client(transport), Client(api_server.transport())
    pod = await kube.create(PODS, pod_body(), "default")
    issuers = {"internal": SigningConfig(AuthorityFolder(tmp_path), POLICY)}
    async with apiserver.informers(newer) as informers:
        signer = PodCertificateSigner(context(newer, informers, certificate_issuers=issuers))
        async with running(signer):
            made = await kube.create(POD_CERTIFICATE_REQUESTS, request_body(pod.metadata.uid), "default")
            found = await answered(kube, made.metadata.name)
    assert [one.type for one in found.status.conditions] == ["Issued"]
    assert transport.written == {versions[0]}


async def test_the_status_is_what_the_api_server_of_kubernetes_accepts(authority: CertificateAuthority) -> None:
    wanted, public = check_pod_request(request_of(), pod_of(), POLICY)
    now = RealClock().time()
    chain = authority.sign(public, wanted, now, backdated=120)
    status = issued_status("internal", pem_of(read_certificates(chain)[:1]))
    begin, end, renew = (parse_rfc3339(status[key]) for key in ("notBefore", "notAfter", "beginRefreshAt"))
    assert end - begin <= 86400
    assert now - begin < 300
    assert begin + 600 < renew < end - 600


async def test_what_cannot_be_allowed_is_denied_once_and_others_requests_are_left_alone(
    kube: Client, signer: PodCertificateSigner, authority: CertificateAuthority, running: Running
) -> None:
    others = request_body("u", signerName="example.com/x")
    other = await kube.create(POD_CERTIFICATE_REQUESTS, others, "default")
    unknown = await kube.create(POD_CERTIFICATE_REQUESTS, request_body("u", signerName="tonnage.dev/no"), "default")
    gone = await kube.create(POD_CERTIFICATE_REQUESTS, request_body("u"), "default")
    async with running(signer):
        found = await answered(kube, gone.metadata.name)
        version = found.metadata.resource_version
        for name in (gone, other, unknown):
            await signer.reconcile(name.metadata.key)
    assert [(one.type, one.reason, one.message) for one in found.status.conditions] == [
        ("Denied", "NotAllowed", "pod default/p: does not exist")
    ]
    assert (
        await kube.get(POD_CERTIFICATE_REQUESTS, gone.metadata.name, "default")
    ).metadata.resource_version == version
    for name in (other, unknown):
        assert not (await kube.get(POD_CERTIFICATE_REQUESTS, name.metadata.name, "default")).status.conditions


async def test_without_an_authority_nothing_is_denied(
    kube: Client, signer: PodCertificateSigner, settle: Callable[[], Any]
) -> None:
    pod = await kube.create(PODS, pod_body(), "default")
    made = await kube.create(POD_CERTIFICATE_REQUESTS, request_body(pod.metadata.uid), "default")
    await settle()
    with pytest.raises(UnavailableError, match="mount a Secret"):
        await signer.reconcile(made.metadata.key)
    assert not (await kube.get(POD_CERTIFICATE_REQUESTS, made.metadata.name, "default")).status.conditions


def test_the_stub_is_that_of_a_kubelet() -> None:
    request = x509.load_der_x509_csr(base64.b64decode(stub(make_key("ECDSA", 256))))
    assert request.is_signature_valid
    assert isinstance(request.public_key(), ec.EllipticCurvePublicKey)
    assert SIGNER.startswith("tonnage.dev/")
