"""A cert-manager of one file for tests: the definition of CertificateRequests, and an issuer that signs them.

The definition has the fields that a CSI driver writes and reads, with a status subresource. The issuer sees requests by
kubectl, as a controller of its own would, and takes nothing but the request's public key and names.
"""

from __future__ import annotations

import base64
import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT}
_REFERENCE = {"type": "object", "required": ["name"], "properties": dict.fromkeys(("name", "kind", "group"), _TEXT)}
_CONDITION = {"type": "object", "properties": dict.fromkeys(("type", "status", "reason", "message"), _TEXT)}
_SPEC = {
    "type": "object",
    "required": ["request", "issuerRef"],
    "properties": {"request": _TEXT, "issuerRef": _REFERENCE, "duration": _TEXT, "isCA": _FLAG, "usages": _TEXTS},
}
_STATUS = {
    "type": "object",
    "properties": {"certificate": _TEXT, "ca": _TEXT, "conditions": {"type": "array", "items": _CONDITION}},
}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "certificaterequests.cert-manager.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "cert-manager.io",
        "scope": "Namespaced",
        "names": {
            "kind": "CertificateRequest",
            "listKind": "CertificateRequestList",
            "plural": "certificaterequests",
            "singular": "certificaterequest",
            "shortNames": ["cr"],
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC, "status": _STATUS}}},
            }
        ],
    },
}
KIND = "certificaterequests.cert-manager.io"


class Kubectl(Protocol):
    """A cluster that is asked by kubectl: a box, or a real control plane."""

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl; its output."""

    def get(self, *arguments: str) -> Any:
        """Objects as data."""


class FakeIssuer:
    """Answers requests while it runs. verdicts: namespace -> a condition to write instead of a certificate."""

    def __init__(self, cluster: Kubectl) -> None:
        self._cluster, self._stop = cluster, threading.Event()
        self.verdicts: dict[str, dict[str, str]] = {}
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake issuer")])
        self._root = self._certificate(self._name, self._key.public_key(), x509.BasicConstraints(True, None))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure = ""

    @property
    def root(self) -> bytes:
        """The issuer's certificate as PEM."""
        return self._root.public_bytes(serialization.Encoding.PEM)

    def __enter__(self) -> FakeIssuer:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.failure, self.failure

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            try:
                for request in self._cluster.get(KIND, "-A")["items"]:
                    if not request.get("status", {}).get("conditions"):
                        self._answer(request)
            except Exception as failure:  # shown by the test
                self.failure = repr(failure)
                return

    def _answer(self, request: dict[str, Any]) -> None:
        meta = request["metadata"]
        status: dict[str, Any] = {"conditions": [self.verdicts.get(meta["namespace"]) or _ready()]}
        if meta["namespace"] not in self.verdicts:
            asked = x509.load_pem_x509_csr(base64.b64decode(request["spec"]["request"]))
            assert asked.is_signature_valid
            names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            signed = self._certificate(asked.subject, asked.public_key(), names.value)
            pem = signed.public_bytes(serialization.Encoding.PEM)
            status |= {"certificate": base64.b64encode(pem).decode(), "ca": base64.b64encode(self.root).decode()}
        patch = json.dumps({"status": status})
        where = ("-n", meta["namespace"], "--subresource=status", "--type=merge")
        self._cluster.kubectl("patch", KIND, meta["name"], *where, "-p", patch)

    def _certificate(self, subject: x509.Name, key: Any, extension: x509.ExtensionType) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + timedelta(days=90))
        return builder.add_extension(extension, critical=True).sign(self._key, hashes.SHA256())


def _ready() -> dict[str, str]:
    return {"type": "Ready", "status": "True", "reason": "Issued", "message": "signed by the fake issuer"}
