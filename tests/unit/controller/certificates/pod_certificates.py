"""PodCertificateRequests as a kubelet makes them, for tests on the box's API server and on a real one."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from tonnage.base.errors import ApiNotFoundError
from tonnage.csi.inline.cert.keys import PrivateKey, make_key
from tonnage.kubernetes.client.transport import Request, Response, Transport

SIGNER = "tonnage.dev/internal"


def stub(key: PrivateKey) -> str:
    """The empty PKCS #10 request of a kubelet: DER in base64."""
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, digest)
    return base64.b64encode(request.public_bytes(serialization.Encoding.DER)).decode()


def projection(signer: str = SIGNER, **more: Any) -> dict[str, Any]:
    """A projected volume with one podCertificate source."""
    source = {"signerName": signer, "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem", **more}
    return {"name": "tls", "projected": {"sources": [{"podCertificate": source}]}}


def pod_body(name: str = "p", *, node: str = "n1", **source: Any) -> dict[str, Any]:
    """A pod with such a volume."""
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}], "volumes": [projection(**source)]}
    return {"metadata": {"name": name}, "spec": spec}


def request_body(pod_uid: str, key: PrivateKey | None = None, **spec: Any) -> dict[str, Any]:
    """A kubelet's request for the pod `p` of node n1."""
    asked = {
        "signerName": SIGNER,
        "podName": "p",
        "podUID": pod_uid,
        "serviceAccountName": "default",
        "serviceAccountUID": "account-uid",
        "nodeName": "n1",
        "nodeUID": "node-uid",
        "maxExpirationSeconds": 86400,
        "stubPKCS10Request": stub(key or make_key("ECDSA", 256)),
        **spec,
    }
    return {"metadata": {"generateName": "req-p-"}, "spec": asked}


class VersionedTransport:
    """A server that has pod certificates and trust bundles in these versions of certificates.k8s.io only."""

    def __init__(self, inner: Transport, versions: tuple[str, ...]) -> None:
        self._inner, self._versions = inner, versions
        self.written: set[str] = set()
        """Versions in which they were written."""

    def _inside(self, request: Request) -> Request | None:
        """The request as the box's server has it, None where this one answers 404."""
        parts = request.path.split("/")
        if parts[2:3] != ["certificates.k8s.io"] or not {"podcertificaterequests", "clustertrustbundles"} & set(parts):
            return request
        if parts[3] not in self._versions:
            return None
        if request.method != "GET":
            self.written.add(parts[3])
        body = request.body.replace(f"certificates.k8s.io/{parts[3]}".encode(), b"certificates.k8s.io/v1beta1")
        return replace(request, path="/".join([*parts[:3], "v1beta1", *parts[4:]]), body=body)

    async def request(self, request: Request) -> Response:
        inside = self._inside(request)
        return Response(404, b"{}") if inside is None else await self._inner.request(inside)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        inside = self._inside(request)
        if inside is None:
            raise ApiNotFoundError("the server could not find the requested resource")
        async with self._inner.stream(inside) as chunks:
            yield chunks

    async def close(self) -> None:
        await self._inner.close()
