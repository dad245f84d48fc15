"""Keys are made, written, read and compared."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.keys import make_key, public_bytes, read_key, write_key


@pytest.mark.parametrize(
    ("algorithm", "size", "encoding", "first"),
    [
        ("RSA", 2048, "PKCS1", b"BEGIN RSA PRIVATE KEY"),
        ("RSA", 2048, "PKCS8", b"BEGIN PRIVATE KEY"),
        ("ECDSA", 521, "PKCS8", b"BEGIN PRIVATE KEY"),
        ("Ed25519", 0, "PKCS8", b"BEGIN PRIVATE KEY"),
    ],
)
def test_written_and_read(algorithm: str, size: int, encoding: str, first: bytes) -> None:
    key = make_key(algorithm, size)
    pem = write_key(key, encoding)
    assert first in pem
    assert public_bytes(read_key(pem).public_key()) == public_bytes(key.public_key())


def test_what_is_no_key_is_not_shown() -> None:
    with pytest.raises(InvalidError) as raised:
        read_key(b"secret")
    assert "secret" not in str(raised.value)
