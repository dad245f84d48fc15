"""The certificate that the server makes for itself."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from tonnage_box.apiserver.server import certificate

SINCE = datetime(2026, 1, 1, tzinfo=UTC)


def test_it_is_its_own_authority_and_names_the_server(tmp_path: Path) -> None:
    public, key = certificate.make(["localhost", "127.0.0.1", "::1"], SINCE, SINCE + timedelta(days=10))
    found = x509.load_pem_x509_certificate(public)
    assert found.issuer == found.subject
    found.verify_directly_issued_by(found)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("::1"),
    ]
    assert (found.not_valid_before_utc, found.not_valid_after_utc) == (SINCE, SINCE + timedelta(days=10))
    for name, data in (("crt", public), ("key", key)):
        (tmp_path / name).write_bytes(data)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "crt", tmp_path / "key")
