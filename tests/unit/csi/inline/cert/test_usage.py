"""Usages become extensions."""

from __future__ import annotations

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.usage import extended_key_usage, is_usage, key_usage


def test_extensions() -> None:
    usage = key_usage(["digital signature", "server auth"])
    assert usage.digital_signature
    assert not usage.key_cert_sign
    extended = extended_key_usage(["s/mime", "server auth", "email protection"])
    assert extended is not None
    assert list(extended) == [ExtendedKeyUsageOID.EMAIL_PROTECTION, ExtendedKeyUsageOID.SERVER_AUTH]
    assert extended_key_usage(["signing"]) is None
    assert is_usage("ipsec user")
    assert not is_usage("fly")


def test_usages_that_exclude_each_other() -> None:
    with pytest.raises(InvalidError, match="encipher_only"):
        key_usage(["encipher only"])
