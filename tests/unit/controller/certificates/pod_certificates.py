"""PodCertificateRequests as a kubelet makes them, for tests on the box's API server and on a real one."""

from __future__ import annotations

import base64
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from tonnage.inline.cert.keys import PrivateKey, make_key

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
