"""Requests for certificates, as API servers write them."""

from __future__ import annotations

from tonnage.kubernetes.api.certificate import CertificateSigningRequest
from tonnage.kubernetes.api.decode import convert


def test_what_the_controller_reads() -> None:
    spec = {"request": "eA==", "signerName": "a.b/c", "username": "u", "extra": {"k": ["v"]}, "expirationSeconds": 600}
    status = {"conditions": [{"type": "Approved", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}]}
    found = convert({"metadata": {"name": "x"}, "spec": spec, "status": status}, CertificateSigningRequest)
    assert (found.spec.signer_name, found.spec.extra, found.spec.expiration_seconds) == ("a.b/c", {"k": ["v"]}, 600)
    assert found.has("Approved")
    assert not found.has("Denied")
    assert convert({"metadata": {"name": "x"}}, CertificateSigningRequest).spec.expiration_seconds is None
