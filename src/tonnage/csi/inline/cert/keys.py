"""Private keys of pods: made on the node, written as PEM, never sent anywhere.

Blocking: an RSA key of 2048 bits takes 20 to 300 ms of a core, so callers use a thread.
"""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tonnage.base.errors import InvalidError

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_CURVES: dict[int, ec.EllipticCurve] = {256: ec.SECP256R1(), 384: ec.SECP384R1(), 521: ec.SECP521R1()}


def make_key(algorithm: str, size: int) -> PrivateKey:
    """Make a key of checked kind and bits. Blocking."""
    if algorithm == "RSA":
        return rsa.generate_private_key(65537, size)
    return ec.generate_private_key(_CURVES[size]) if algorithm == "ECDSA" else ed25519.Ed25519PrivateKey.generate()


def read_key(pem: bytes) -> PrivateKey:
    """Read a key without a password. Raises: InvalidError, which shows nothing of it."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        raise InvalidError("private key: cannot be read; want PEM without a password") from None
    if not isinstance(key, PrivateKey):
        raise InvalidError("private key: want RSA, ECDSA or Ed25519")
    return key


def write_key(key: PrivateKey, encoding: str) -> bytes:
    """Return a key as PEM. encoding: PKCS1 or PKCS8."""
    traditional = serialization.PrivateFormat.TraditionalOpenSSL
    form = traditional if encoding == "PKCS1" else serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def public_bytes(key: object) -> bytes:
    """Return a public key's DER, to compare keys."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)  # type: ignore[attr-defined, no-any-return]
