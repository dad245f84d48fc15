"""Files of a certificate's volume, as openssl reads them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from tests.programs import need
from tests.unit.csi.inline.cert.makers import ours, pod

from tonnage.base.errors import UnavailableError
from tonnage.csi.inline.cert.attributes import OURS, read_attributes
from tonnage.csi.inline.cert.authority import CertificateAuthority, make_authority, public_key_of, read_request
from tonnage.csi.inline.cert.contents import check_issued, make_files
from tonnage.csi.inline.cert.issuers.base import IssuedCertificate, split_roots
from tonnage.csi.inline.cert.keys import PrivateKey, make_key
from tonnage.csi.inline.cert.wanted import from_settings, signing_request

NOW = 1_800_000_000.0


def issue(authority: CertificateAuthority, key: PrivateKey, **attributes: str) -> IssuedCertificate:
    wanted = from_settings(read_attributes(ours(**attributes), OURS), pod())
    return split_roots(authority.sign(public_key_of(read_request(signing_request(wanted, key))), wanted, NOW))


@pytest.mark.real
@pytest.mark.parametrize("profile", ["modern", "legacy"])
def test_all_files(profile: str, tmp_path: Path) -> None:
    need("openssl")
    store = {
        "pkcs12_enable": "true",
        "pkcs12_filename": "crt.p12",
        "pkcs12_password": "secret",
        "pkcs12_profile": profile,
    }
    settings = read_attributes(ours(bundle_file="bundle.pem", truststore_file="trust.p12", **store), OURS)
    key, authority = make_key("ECDSA", 256), make_authority("test", NOW)
    files = make_files(settings, key, issue(authority, key))
    assert sorted(files) == ["bundle.pem", "ca.crt", "crt.p12", "tls.crt", "tls.key", "trust.p12"]
    assert files["bundle.pem"] == files["tls.key"] + files["tls.crt"]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    command = ["openssl", "pkcs12", "-in", str(tmp_path / "crt.p12"), "-passin", "pass:secret", "-nodes"]
    read = subprocess.run([*command, *(["-legacy"] if profile == "legacy" else [])], capture_output=True, check=True)
    assert read.stdout.count(b"BEGIN CERTIFICATE") == 2
    assert b"BEGIN PRIVATE KEY" in read.stdout
    verify = [
        "openssl",
        "verify",
        "-attime",
        str(int(NOW)),
        "-CAfile",
        str(tmp_path / "ca.crt"),
        str(tmp_path / "tls.crt"),
    ]
    assert subprocess.run(verify, capture_output=True, check=True).stdout.endswith(b"OK\n")


def test_checks_before_files_are_replaced() -> None:
    key, other = make_key("ECDSA", 256), make_key("ECDSA", 256)
    authority, foreign = make_authority("test", NOW), make_authority("foreign", NOW)
    good = issue(authority, key, duration="1h")
    assert isinstance(check_issued(good, key, NOW), x509.Certificate)
    for issued, private, now, text in [
        (good, other, NOW, "not for the key"),
        (good, key, NOW + 3600, "has expired already"),
        (IssuedCertificate(good.chain, foreign.pem), key, NOW, "does not end at the issuer's root"),
        (IssuedCertificate(good.chain + foreign.pem, b""), key, NOW, "its chain does not verify"),
        (IssuedCertificate(b"", b""), key, NOW, "answered without one"),
    ]:
        with pytest.raises(UnavailableError, match=text):
            check_issued(issued, private, now)
