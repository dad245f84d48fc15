"""Certificates on a real control plane that has PodCertificateRequests and ClusterTrustBundles.

Our controller's loops run with the controller's own token, so its RBAC is enough. An agent's token is tried for all that
somebody who stole it might want.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster import programs
from cluster.__main__ import BUSYBOX, down, up
from cryptography import x509
from tests.e2e.agents import SYSTEM, Nodes
from tests.e2e.control_plane import ControlPlane, release
from tests.integration.certificates.cert_manager import DEFINITION, KIND, FakeIssuer
from tests.unit.controller.certificates.pod_certificates import projection, request_body
from tests.unit.csi.inline.cert.makers import ours

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import UnavailableError
from tonnage.controller.app import controller_process
from tonnage.controller.certificates.authority_folder import AuthorityFolder
from tonnage.controller.config import ControllerConfig, SigningConfig
from tonnage.csi.inline.base import InlinePod
from tonnage.csi.inline.cert.attributes import OURS
from tonnage.csi.inline.cert.authority import CertificateAuthority, make_authority, read_certificates, secret_data
from tonnage.csi.inline.cert.issuers.base import CertificateDeniedError, IssueRequest
from tonnage.csi.inline.cert.issuers.remote import CertManagerIssuer, PublishedMap, SigningRequestIssuer
from tonnage.csi.inline.cert.keys import PrivateKey, make_key, public_bytes, read_key
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.csi.inline.cert.wanted import signing_request, wanted_certificate
from tonnage.kubernetes.api.certificate import PodCertificateRequest
from tonnage.kubernetes.api.kinds import POD_CERTIFICATE_REQUESTS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.kubernetes.client.kubeconfig import FixedToken, load
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation, parse_installed_issuer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.since("1.36")]
GATES = "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true"
SERVED = "certificates.k8s.io/v1beta1/clustertrustbundles=true,certificates.k8s.io/v1beta1/podcertificaterequests=true"
CERTIFICATES = "/apis/certificates.k8s.io/v1"
NAMESPACE = "certificates"
FILES = ("bundle.pem", "ca.crt")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane and one kubelet with both features, and tonnage's objects with one issuer."""
    folder = tmp_path_factory.mktemp("certificates")
    try:
        kubectl = programs.kubectl()
        flags = {"kube-apiserver": [GATES, f"--runtime-config={SERVED}"], "kubelet": [GATES]}
        found = up(folder, 1, arguments=flags)
    except programs.Missing as reason:
        pytest.skip(f"no real Kubernetes: {reason}")
    try:
        made = ControlPlane(folder, Path(str(found["kubeconfig"])), str(found["server"]), kubectl)
        chosen = Installation(kubernetes=release(), issuers=[parse_installed_issuer("internal=internal-ca")])
        made.kubectl("apply", "--validate=strict", "-f", "-", stdin=manifests.render(chosen))
        made.kubectl("create", "namespace", NAMESPACE)
        made.until("accounts", lambda: bool(made.get("serviceaccounts", "-n", NAMESPACE)["items"]))
        made.apply(DEFINITION)
        yield made
    finally:
        down(folder)


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> Nodes:
    """Two nodes with the tokens of their agents."""
    made = Nodes(plane, "cert", NAMESPACE)
    for number in (1, 2):
        made.add(number)
    return made


@pytest.fixture(scope="module")
def authority(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CertificateAuthority]:
    """The issuer's folder, as the controller has it mounted, and the authority; also as the Secret of the cluster."""
    folder = tmp_path_factory.mktemp("internal")
    made = make_authority("internal", RealClock().time())
    for name, data in secret_data(made).items():
        (folder / name).write_bytes(data)
    files = (f"--cert={folder}/tls.crt", f"--key={folder}/tls.key")
    plane.kubectl("-n", SYSTEM, "create", "secret", "tls", "internal-ca", *files)
    return folder, made


@asynccontextmanager
async def client(plane: ControlPlane, token: str) -> AsyncIterator[Client]:
    """A client with a token and nothing else."""
    access = replace(load(plane.kubeconfig), tls=None)
    tls = ssl.create_default_context(cafile=str(plane.folder / "pki" / "ca.crt"))
    transport = HttpTransport(replace(access, tls=tls, token=FixedToken(token)))
    try:
        yield Client(transport)
    finally:
        await transport.close()


@asynccontextmanager
async def controller(plane: ControlPlane, folder: Path) -> AsyncIterator[None]:
    """Our controller, with its own rights."""
    token = plane.kubectl("-n", SYSTEM, "create", "token", "tonnage-controller").strip()
    policy = NamePolicy(allow=("subject:O=Example",))
    async with client(plane, token) as kube:
        issuers = {"internal": SigningConfig(AuthorityFolder(folder), policy)}
        process = controller_process(ControllerConfig("test", namespace=SYSTEM, certificate_issuers=issuers), kube)
        await process.start()
        try:
            yield
        finally:
            await process.stop()


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await holds():
            await asyncio.sleep(0.1)


def make_pod(nodes: Nodes, name: str, node: str, volume: dict[str, Any]) -> InlinePod:
    """A pod of a node, as the kubelet describes it to a driver."""
    spec = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "none.invalid/none"}],
        "volumes": [volume],
        "tolerations": [{"operator": "Exists"}],
    }
    meta = {"name": name, "namespace": NAMESPACE}
    made = nodes.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    return InlinePod(NAMESPACE, name, made["metadata"]["uid"], "default")


def kubelets_request(nodes: Nodes, pod: InlinePod, node: str, key: PrivateKey, **spec: Any) -> dict[str, Any]:
    account = nodes.plane.get("serviceaccount", "default", "-n", NAMESPACE)["metadata"]["uid"]
    more = {"podName": pod.name, "nodeName": node, "nodeUID": nodes.uids[node], "serviceAccountUID": account}
    return request_body(pod.uid, key, **more, **spec)


async def answer(kube: Client, name: str) -> PodCertificateRequest:
    async def is_answered() -> bool:
        return bool((await kube.get(POD_CERTIFICATE_REQUESTS, name, NAMESPACE)).status.conditions)

    await until("the request is answered", is_answered)
    return await kube.get(POD_CERTIFICATE_REQUESTS, name, NAMESPACE)


async def test_a_kubelets_request_is_signed_within_the_rules_of_the_api_server(
    plane: ControlPlane, nodes: Nodes, authority: tuple[Path, CertificateAuthority]
) -> None:
    notes = {"cert.tonnage.dev/dns-names": f"web.{NAMESPACE}.svc", "cert.tonnage.dev/organizations": "Example"}
    node, key = nodes.name(1), make_key("ECDSA", 256)
    pod = make_pod(nodes, "asks", node, projection(userAnnotations=notes))
    admin = HttpTransport(load(plane.kubeconfig))
    kube = Client(admin)
    async with controller(plane, authority[0]):
        body = kubelets_request(nodes, pod, node, key, unverifiedUserAnnotations=notes)
        made = await kube.create(POD_CERTIFICATE_REQUESTS, body, NAMESPACE)
        found = await answer(kube, made.metadata.name)
        assert [(one.type, one.message[:18]) for one in found.status.conditions] == [("Issued", "the pod's own text")]
        (leaf,) = read_certificates(found.status.certificate_chain.encode())
        leaf.verify_directly_issued_by(authority[1].chain[0])
        assert public_bytes(leaf.public_key()) == public_bytes(key.public_key())
        other = kubelets_request(nodes, pod, nodes.name(2), key, unverifiedUserAnnotations=notes)
        made = await kube.create(POD_CERTIFICATE_REQUESTS, other, NAMESPACE)
        found = await answer(kube, made.metadata.name)
        assert [(one.type, one.reason) for one in found.status.conditions] == [("Denied", "NotAllowed")]
        made = await kube.create(POD_CERTIFICATE_REQUESTS, kubelets_request(nodes, pod, node, key), NAMESPACE)
        found = await answer(kube, made.metadata.name)
        assert "has no such podCertificate volume" in found.status.conditions[0].message
    await admin.close()


async def test_a_real_kubelet_mounts_what_our_controller_signs(
    plane: ControlPlane, authority: tuple[Path, CertificateAuthority]
) -> None:
    volume = projection()
    bundle = {"signerName": "tonnage.dev/internal", "labelSelector": {}, "path": "ca.crt"}
    volume["projected"]["sources"].append({"clusterTrustBundle": bundle})
    main: dict[str, Any] = {"name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "1000"]}
    main["volumeMounts"] = [{"name": "tls", "mountPath": "/tls"}]
    spec = {"nodeName": "node-1", "containers": [main], "volumes": [volume], "terminationGracePeriodSeconds": 0}
    meta = {"name": "real", "namespace": NAMESPACE}
    async with controller(plane, authority[0]):
        plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        ready = ("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/real", "--timeout=180s")
        await asyncio.to_thread(plane.kubectl, *ready)
    shown, roots = (plane.kubectl("exec", "-n", NAMESPACE, "real", "--", "cat", f"/tls/{name}") for name in FILES)
    leaf = read_certificates(shown[shown.index("-----BEGIN CERTIFICATE") :].encode())[0]
    leaf.verify_directly_issued_by(read_certificates(roots.encode())[0])
    assert read_certificates(roots.encode()) == authority[1].chain
    key = read_key(shown[: shown.index("-----BEGIN CERTIFICATE")].encode())
    assert public_bytes(leaf.public_key()) == public_bytes(key.public_key())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [one.value for one in names] == [f"spiffe://cluster.local/ns/{NAMESPACE}/sa/default"]
    plane.kubectl("delete", "pod", "-n", NAMESPACE, "real")


async def test_the_roots_are_published_for_pods_and_for_agents(
    plane: ControlPlane, nodes: Nodes, authority: tuple[Path, CertificateAuthority]
) -> None:
    roots = authority[1].roots.decode()

    async def is_published() -> bool:
        found = await asyncio.to_thread(plane.get, "clustertrustbundles")
        return [(one["metadata"]["name"], one["spec"]["trustBundle"]) for one in found["items"]] == [
            ("tonnage.dev:internal:v1", roots)
        ]

    async with controller(plane, authority[0]):
        await until("the bundle is published", is_published)
        async with client(plane, nodes.tokens[nodes.name(1)]) as kube:

            async def is_read() -> bool:
                return await PublishedMap(kube, SYSTEM, RealClock()).roots("internal") == roots.encode()

            await until("agents read the roots", is_read)


def asked(pod: InlinePod, name: str, **more: str) -> IssueRequest:
    values = ours(issuer_name="internal", dns_names=f"web.{NAMESPACE}.svc", uri_sans="", duration="1h", **more)
    wanted = wanted_certificate(values, pod, OURS)
    return IssueRequest(name, signing_request(wanted, make_key("ECDSA", 256)), wanted, pod, "csi-1")


def inline_volume() -> dict[str, Any]:
    values = ours(issuer_name="internal", dns_names=f"web.{NAMESPACE}.svc", uri_sans="", duration="1h")
    return {"name": "tls", "csi": {"driver": OURS.driver, "readOnly": True, "volumeAttributes": values}}


async def test_an_agent_has_certificates_of_its_own_pods_only(
    plane: ControlPlane, nodes: Nodes, authority: tuple[Path, CertificateAuthority]
) -> None:
    pod = make_pod(nodes, "inline", nodes.name(1), inline_volume())
    async with controller(plane, authority[0]):
        async with client(plane, nodes.tokens[nodes.name(1)]) as kube:
            mine = SigningRequestIssuer(kube, "tonnage.dev/internal", RealClock(), patience=60)
            issued = await mine.issue(asked(pod, "mine"))
            read_certificates(issued.chain)[0].verify_directly_issued_by(authority[1].chain[0])
            with pytest.raises(CertificateDeniedError, match="its volumeAttributes do not ask for this"):
                await mine.issue(asked(pod, "more", common_name=f"web.{NAMESPACE}.svc"))
        async with client(plane, nodes.tokens[nodes.name(2)]) as kube:
            other = SigningRequestIssuer(kube, "tonnage.dev/internal", RealClock(), patience=60)
            with pytest.raises(CertificateDeniedError, match="is not on the node that asks"):
                await other.issue(asked(pod, "other"))
        token = plane.kubectl("-n", SYSTEM, "create", "token", "tonnage-node").strip()
        async with client(plane, token) as kube:
            unbound = SigningRequestIssuer(kube, "tonnage.dev/internal", RealClock(), patience=60)
            with pytest.raises(UnavailableError, match="bound to no pod"):
                await unbound.issue(asked(pod, "unbound"))


SYSTEM_PATH = f"/api/v1/namespaces/{SYSTEM}"
BETA = "/apis/certificates.k8s.io/v1beta1"
REJECTED: list[tuple[str, str, Any]] = [
    ("GET", f"{SYSTEM_PATH}/secrets/internal-ca", None),
    ("GET", f"{SYSTEM_PATH}/secrets", None),
    ("GET", f"{SYSTEM_PATH}/configmaps", None),
    ("PATCH", f"{SYSTEM_PATH}/configmaps/tonnage-issuers", {"data": {"internal": "x"}}),
    ("GET", f"{CERTIFICATES}/certificatesigningrequests", None),
    ("PATCH", f"{CERTIFICATES}/certificatesigningrequests/tonnage-x/approval", {"status": {}}),
    ("PATCH", f"{CERTIFICATES}/certificatesigningrequests/tonnage-x/status", {"status": {}}),
    ("DELETE", f"{CERTIFICATES}/certificatesigningrequests/tonnage-x", None),
    ("POST", f"{BETA}/namespaces/{NAMESPACE}/podcertificaterequests", {"metadata": {"name": "x"}}),
    ("GET", f"{BETA}/namespaces/{NAMESPACE}/podcertificaterequests", None),
    ("PATCH", f"{BETA}/namespaces/{NAMESPACE}/podcertificaterequests/x/status", {"status": {}}),
    ("POST", f"{BETA}/clustertrustbundles", {"metadata": {"name": "tonnage.dev:internal:v2"}}),
    ("PATCH", f"{BETA}/clustertrustbundles/tonnage.dev:internal:v1", {"spec": {"trustBundle": "x"}}),
    ("POST", f"{SYSTEM_PATH}/serviceaccounts/tonnage-controller/token", {"spec": {}}),
]


@pytest.mark.parametrize(("method", "path", "body"), REJECTED)
def test_a_stolen_agents_token_has_no_other_right(
    plane: ControlPlane, nodes: Nodes, method: str, path: str, body: Any
) -> None:
    found = plane.send(method, path, body, token=nodes.tokens[nodes.name(1)])
    assert (found.status, "forbidden" in found.message) == (403, True), found.body


def test_the_controller_attests_for_its_own_signers_only(plane: ControlPlane, nodes: Nodes) -> None:
    token = plane.kubectl("-n", SYSTEM, "create", "token", "tonnage-controller").strip()
    root = make_authority("x", RealClock().time()).roots.decode()
    for signer, name, status in (
        ("tonnage.dev/internal", "tonnage.dev:internal:v2", 201),
        ("tonnage.dev/other", "tonnage.dev:other:v1", 403),
        ("kubernetes.io/kubelet-serving", "kubernetes.io:kubelet-serving:v9", 403),
    ):
        body = {
            "apiVersion": "certificates.k8s.io/v1beta1",
            "kind": "ClusterTrustBundle",
            "metadata": {"name": name},
            "spec": {"signerName": signer, "trustBundle": root},
        }
        found = plane.send("POST", f"{BETA}/clustertrustbundles?dryRun=All", body, token=token)
        assert found.status == status, found.body


async def test_cert_managers_requests_with_its_own_kind(plane: ControlPlane, nodes: Nodes) -> None:
    rules = ["--verb=create,get,delete", "--resource=certificaterequests.cert-manager.io"]
    plane.kubectl("create", "clusterrole", "agents-ask-cert-manager", *rules)
    account = f"--serviceaccount={SYSTEM}:tonnage-node"
    plane.kubectl("create", "clusterrolebinding", "agents-ask", "--clusterrole=agents-ask-cert-manager", account)
    pod = make_pod(nodes, "cert-manager", nodes.name(1), inline_volume())
    with FakeIssuer(plane) as fake:
        async with client(plane, nodes.tokens[nodes.name(1)]) as kube:
            issuer = CertManagerIssuer(kube, nodes.name(1), RealClock(), patience=60)
            issued = await issuer.issue(asked(pod, "5f0c"))
            again = await issuer.issue(asked(pod, "5f0c"))
            await issuer.discard("5f0c", NAMESPACE)
    assert issued == again
    assert issued.roots == fake.root
    assert plane.get(KIND, "-n", NAMESPACE)["items"] == []
