"""Requests of agents are signed only where the pod's own text asks for them: the table of hostile requests."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.controller.contexts import context
from tests.unit.csi.inline.cert.makers import issue_request, ours

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.controller.certificates.authority_folder import AuthorityFolder
from tonnage.controller.certificates.signing_requests import (
    NODE_NAME,
    CertificateSigner,
    check_request,
)
from tonnage.controller.config import SigningConfig
from tonnage.csi.inline.base import InlinePod
from tonnage.csi.inline.cert.attributes import COMPATIBLE, OURS
from tonnage.csi.inline.cert.authority import CertificateAuthority, make_authority, read_certificates, secret_data
from tonnage.csi.inline.cert.issuers.base import CertificateDeniedError, IssueRequest
from tonnage.csi.inline.cert.issuers.remote import SigningRequestIssuer, signing_body
from tonnage.csi.inline.cert.keys import make_key
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.csi.inline.cert.variables import inline_pod
from tonnage.csi.inline.cert.wanted import signing_request, wanted_certificate
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.certificate import CertificateSigningRequest
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.kinds import NAMESPACES, PODS, SIGNING_REQUESTS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.request.user import ApiUser
from tonnage_box.apiserver.server.server import ApiServer

AGENT = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:tonnage-node"
SIGNER = "tonnage.dev/ca-issuer"
POLICY = NamePolicy()
DNS = "my-service.default.svc"
Change = Callable[[dict[str, Any]], None]


def attributes(**more: str) -> dict[str, str]:
    return ours(dns_names=DNS, uri_sans="", duration="1h", **more)


def pod_of(values: dict[str, str], *, driver: str = OURS.driver, node: str = "n1", **status: Any) -> Pod:
    volumes = [{"name": "tls", "csi": {"driver": driver, "readOnly": True, "volumeAttributes": values}}]
    spec = {"nodeName": node, "serviceAccountName": "default", "volumes": volumes, "containers": []}
    meta = {"name": "p", "namespace": "default", "uid": "uid-1"}
    return convert({"metadata": meta, "spec": spec, "status": {"phase": "Pending", **status}}, Pod)


def asked(values: dict[str, str], pod: InlinePod) -> IssueRequest:
    wanted = wanted_certificate(values, pod, OURS)
    return IssueRequest("0b1e", signing_request(wanted, make_key("ECDSA", 256)), wanted, pod, "csi-1")


def request_for(values: dict[str, str], pod: Pod, change: Change = lambda body: None) -> CertificateSigningRequest:
    """The request that an agent makes, as the API server writes it; change: what a stolen agent does to it."""
    body = signing_body("tonnage-0b1e", SIGNER, asked(values, inline_pod(pod)))
    body["spec"] |= {"username": AGENT, "extra": {NODE_NAME: ["n1"]}}
    change(body)
    return convert(body, CertificateSigningRequest)


def put(*path: str, value: Any) -> Change:
    def change(body: dict[str, Any]) -> None:
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = value

    return change


def test_what_the_pod_asks_for_is_allowed() -> None:
    pod = pod_of(attributes())
    assert check_request(request_for(attributes(), pod), pod, AGENT, POLICY).issuer.name == "ca-issuer"


def test_a_password_in_a_secret_and_another_broken_volume_are_no_obstacle() -> None:
    values = attributes(pkcs12_enable="true")
    volume = {"driver": OURS.driver, "volumeAttributes": values, "nodePublishSecretRef": {"name": "s"}}
    broken = {"driver": COMPATIBLE.driver, "volumeAttributes": {}}
    plain: dict[str, Any] = msgspec.to_builtins(pod_of({}))
    plain["spec"]["volumes"] = [{"name": "b", "csi": broken}, {"name": "tls", "csi": volume}]
    pod = convert(plain, Pod)
    asked_for = attributes(pkcs12_enable="true", pkcs12_password="-")
    assert check_request(request_for(asked_for, pod), pod, AGENT, POLICY)


OTHER_KEY = base64.b64encode(
    issue_request({f"{COMPATIBLE.prefix}{k}": v for k, v in attributes(is_ca="true").items()}).request
)
HOSTILE: list[tuple[str, Change, Pod, str]] = [
    ("no agent", put("spec", "username", value="system:serviceaccount:default:evil"), pod_of(attributes()), "only agents"),
    ("a pod of another node", put("spec", "extra", value={NODE_NAME: ["n2"]}), pod_of(attributes()), "not on the node"),
    ("no node", put("spec", "extra", value={}), pod_of(attributes()), "not on the node"),
    ("two nodes", put("spec", "extra", value={NODE_NAME: ["n1", "n2"]}), pod_of(attributes()), "not on the node"),
    ("a pod that is not placed", put("spec", "extra", value={NODE_NAME: [""]}), pod_of(attributes(), node=""), "not on the node"),
    ("a former pod", put("metadata", "annotations", value={"tonnage.dev/pod-uid": "uid-0"}), pod_of(attributes()), "another one"),
    ("a forged annotation", put("metadata", "annotations", value={}), pod_of(attributes()), "another one"),
    ("a pod that has ended", put("spec", "x", value=0), pod_of(attributes(), phase="Succeeded"), "has ended"),
    ("a pod without such a volume", put("spec", "x", value=0), pod_of(attributes(), driver="other"), "no inline volume"),
    ("other names", put("spec", "x", value=0), pod_of(ours(dns_names="o.default.svc", uri_sans="", duration="1h")), "other names"),
    ("another subject", put("spec", "x", value=0), pod_of(attributes(common_name="p")), "another subject"),
    ("an authority", put("spec", "request", value=OTHER_KEY.decode()), pod_of(attributes()), "is-ca"),
    ("other usages", put("spec", "usages", value=["server auth"]), pod_of(attributes()), "other usages"),
    ("a longer life", put("spec", "expirationSeconds", value=86400), pod_of(attributes()), "another duration"),
    ("no duration", put("spec", "expirationSeconds", value=None), pod_of(attributes()), "another duration"),
    ("another issuer", put("spec", "signerName", value="tonnage.dev/root"), pod_of(attributes()), "another issuer"),
    ("no request", put("spec", "request", value="%"), pod_of(attributes()), "cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "pod", "text"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_denied(change: Change, pod: Pod, text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        check_request(request_for(attributes(), pod, change), pod, AGENT, POLICY)


@pytest.mark.parametrize(
    "more", [{"is_ca": "true"}, {"common_name": "system:admin"}, {"organizations": "system:masters"}]
)
def test_the_pods_author_gets_no_more_than_the_policy(more: dict[str, str]) -> None:
    pod = pod_of(attributes(**more))
    with pytest.raises(InvalidError, match="not allowed"):
        check_request(request_for(attributes(**more), pod), pod, AGENT, POLICY)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    made = make_authority("test", RealClock().time())
    for name, data in secret_data(made).items():
        (tmp_path / name).write_bytes(data)
    return made


@pytest.fixture
async def signer(kube: Client, informers: Informers, tmp_path: Path) -> CertificateSigner:
    await kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    issuers = {"ca-issuer": SigningConfig(AuthorityFolder(tmp_path), POLICY)}
    return CertificateSigner(context(kube, informers, certificate_issuers=issuers, namespace=names.SYSTEM_NAMESPACE))


def agent(api_server: ApiServer, node: str = "n1") -> SigningRequestIssuer:
    """An agent of a node that asks, with the rights of an administrator and the name of an agent."""
    user = ApiUser(AGENT, ("system:masters",), extra={NODE_NAME: (node,)})
    return SigningRequestIssuer(Client(api_server.transport(user)), SIGNER, RealClock(), patience=20)


async def make_asking_pod(kube: Client, **more: str) -> IssueRequest:
    volume = {"name": "tls", "csi": {"driver": OURS.driver, "readOnly": True, "volumeAttributes": attributes(**more)}}
    spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
    pod = await kube.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, "default")
    return asked(attributes(**more), inline_pod(pod))


Running = Callable[..., AbstractAsyncContextManager[None]]


async def test_an_agent_gets_its_pods_certificate(
    api_server: ApiServer, kube: Client, signer: CertificateSigner, authority: CertificateAuthority, running: Running
) -> None:
    request = await make_asking_pod(kube)
    async with running(signer):
        issued = await agent(api_server).issue(request)
    assert issued.roots == authority.pem
    read_certificates(issued.chain)[0].verify_directly_issued_by(authority.chain[0])
    (found,) = (await kube.list(SIGNING_REQUESTS)).items
    assert [(one.type, one.reason) for one in found.status.conditions] == [("Approved", "PodAttributes")]


async def test_an_agent_of_another_node_does_not(
    api_server: ApiServer, kube: Client, signer: CertificateSigner, authority: CertificateAuthority, running: Running
) -> None:
    request = await make_asking_pod(kube)
    async with running(signer):
        with pytest.raises(
            CertificateDeniedError, match="denied: NotAllowed: pod default/p: is not on the node that asks"
        ):
            await agent(api_server, "n2").issue(request)


async def test_what_somebody_else_approves_is_checked_nevertheless(
    api_server: ApiServer, kube: Client, signer: CertificateSigner, authority: CertificateAuthority, running: Running
) -> None:
    request = await make_asking_pod(kube)
    await kube.delete(PODS, "p", "default", grace_seconds=0)
    await kube.create(SIGNING_REQUESTS, signing_body("tonnage-0b1e", SIGNER, request))
    approved = {"type": "Approved", "status": "True", "reason": "x", "message": "y"}
    await kube.patch(SIGNING_REQUESTS, "tonnage-0b1e", {"status": {"conditions": [approved]}}, subresource="approval")
    async with running(signer):
        with pytest.raises(CertificateDeniedError, match="failed: NotAllowed: pod default/p: does not exist"):
            await agent(api_server).issue(request)


async def test_a_signer_that_starts_later_signs_what_waits(
    api_server: ApiServer, kube: Client, signer: CertificateSigner, tmp_path: Path, running: Running,
    settle: Callable[[], Awaitable[None]],
) -> None:  # fmt: skip
    request = await make_asking_pod(kube)
    await kube.create(SIGNING_REQUESTS, signing_body("other", "example.com/x", request))
    asks = agent(api_server)
    asks._patience = 0.0
    with pytest.raises(UnavailableError, match="not approved yet"):
        await asks.issue(request)
    await settle()
    with pytest.raises(UnavailableError, match="mount a Secret"):
        await signer.reconcile("tonnage-0b1e")
    for name, data in secret_data(make_authority("test", RealClock().time())).items():
        (tmp_path / name).write_bytes(data)
    await settle()
    await signer.reconcile("tonnage-0b1e")
    await signer.reconcile("other")
    assert (await asks.issue(request)).chain
