"""Authorities sign, and are read from Secrets."""

from __future__ import annotations

import pytest
from cryptography import x509
from tests.unit.csi.inline.cert.makers import compatible, pod

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.attributes import COMPATIBLE
from tonnage.csi.inline.cert.authority import (
    make_authority,
    public_key_of,
    read_authority,
    read_certificates,
    read_request,
    secret_data,
)
from tonnage.csi.inline.cert.keys import make_key
from tonnage.csi.inline.cert.wanted import signing_request, wanted_certificate

NOW = 1_800_000_000.0


def test_a_signed_certificate_says_what_is_wanted() -> None:
    authority = make_authority("test", NOW)
    wanted = wanted_certificate(compatible(duration="1h", key_usages="server auth,signing"), pod(), COMPATIBLE)
    public = make_key("Ed25519", 0).public_key()
    leaf, root = read_certificates(authority.sign(public, wanted, NOW))
    leaf.verify_directly_issued_by(root)
    assert leaf.not_valid_after_utc.timestamp() == NOW + 3600
    assert leaf.not_valid_before_utc.timestamp() == NOW - 300
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert tuple(names.value) == wanted.names
    assert names.critical
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "key" not in repr(authority)


def test_no_certificate_outlives_its_authority() -> None:
    authority = make_authority("test", NOW)
    wanted = wanted_certificate(compatible(), pod(), COMPATIBLE)
    public = make_key("ECDSA", 256).public_key()
    end = authority.chain[0].not_valid_after_utc
    assert read_certificates(authority.sign(public, wanted, end.timestamp() - 60))[0].not_valid_after_utc == end
    with pytest.raises(InvalidError, match="has expired; renew it"):
        authority.sign(public, wanted, end.timestamp())


def test_secrets() -> None:
    one, other = (secret_data(make_authority("test", NOW)) for _ in range(2))
    assert read_authority(one["tls.crt"], one["tls.key"]).pem == one["tls.crt"]
    with pytest.raises(InvalidError, match="is not the key"):
        read_authority(one["tls.crt"], other["tls.key"])
    with pytest.raises(InvalidError, match="want PEM"):
        read_authority(b"x", one["tls.key"])
    with pytest.raises(InvalidError, match="want PKCS #10"):
        read_request(b"x")


def test_a_certificate_of_a_pod_is_no_authority() -> None:
    authority, key = make_authority("test", NOW), make_key("ECDSA", 256)
    wanted = wanted_certificate(compatible(), pod(), COMPATIBLE)
    signed = authority.sign(public_key_of(read_request(signing_request(wanted, key))), wanted, NOW)
    from tonnage.csi.inline.cert.keys import write_key

    with pytest.raises(InvalidError, match="is not one of an authority"):
        read_authority(signed, write_key(key, "PKCS8"))
