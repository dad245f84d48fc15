"""The files of a certificate's volume, and the checks before they replace older ones.

Used by the source. Blocking: key stores derive keys from passwords, so callers use a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.csi.inline.cert.attributes import CertificateSettings, KeyStore
from tonnage.csi.inline.cert.authority import read_certificates
from tonnage.csi.inline.cert.issuers.base import IssuedCertificate
from tonnage.csi.inline.cert.keys import PrivateKey, public_bytes, write_key

MODE = 0o440
"""Permissions of every file: root, and the group of the volume."""
_ROUNDS = 20_000


def check_issued(issued: IssuedCertificate, key: PrivateKey, now: float) -> x509.Certificate:
    """Return the pod's certificate if it fits the key, is valid, and its chain verifies. Raises: UnavailableError."""
    chain, roots = read_certificates(issued.chain), read_certificates(issued.roots)
    if not chain:
        raise UnavailableError("certificate: the issuer answered without one")
    if public_bytes(chain[0].public_key()) != public_bytes(key.public_key()):
        raise UnavailableError("certificate: it is not for the key that was made here")
    if chain[0].not_valid_after_utc.timestamp() <= now:
        raise UnavailableError("certificate: it has expired already; check the clocks of node and issuer")
    for below, above in pairwise(chain):
        if not _is_issued_by(below, above):
            raise UnavailableError("certificate: its chain does not verify")
    if roots and not any(_is_issued_by(chain[-1], root) for root in roots):
        raise UnavailableError("certificate: its chain does not end at the issuer's root")
    return chain[0]


def make_files(settings: CertificateSettings, key: PrivateKey, issued: IssuedCertificate) -> dict[str, bytes]:
    """Return the files by name. Blocking. Raises: InvalidError."""
    private = write_key(key, settings.encoding)
    found = {
        settings.file("ca-file"): issued.roots,
        settings.file("certificate-file"): issued.chain,
        settings.file("privatekey-file"): private,
    }
    if bundle := settings.file("bundle-file"):
        found[bundle] = private + issued.chain
    if settings.store.file:
        found[settings.store.file] = _key_store(settings.store, key, issued)
    if trust := settings.file("truststore-file"):
        found[trust] = _trust_store(settings.store, issued)
    return found


def _is_issued_by(below: x509.Certificate, above: x509.Certificate) -> bool:
    try:
        below.verify_directly_issued_by(above)
    except Exception:  # InvalidSignature, ValueError, TypeError, by the kind of key
        return False
    return True


def _key_store(store: KeyStore, key: PrivateKey, issued: IssuedCertificate) -> bytes:
    first, *others = read_certificates(issued.chain)
    more = [*others, *read_certificates(issued.roots)]
    return pkcs12.serialize_key_and_certificates(None, key, first, more, _encryption(store))


def _trust_store(store: KeyStore, issued: IssuedCertificate) -> bytes:
    make: Callable[..., bytes] | None = getattr(pkcs12, "serialize_java_truststore", None)
    if make is None:
        raise InvalidError("truststore-file: this node's cryptography library is too old; omit the attribute")
    roots = read_certificates(issued.roots)
    named = [pkcs12.PKCS12Certificate(root, f"ca-{number}".encode()) for number, root in enumerate(roots)]
    if not named:
        raise InvalidError("truststore-file: the issuer gives no root certificate; omit the attribute")
    return make(named, _encryption(store))


def _encryption(store: KeyStore) -> serialization.KeySerializationEncryption:
    builder = serialization.PrivateFormat.PKCS12.encryption_builder().kdf_rounds(_ROUNDS)
    if store.legacy:
        builder = builder.key_cert_algorithm(pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC).hmac_hash(hashes.SHA1())
    else:
        builder = builder.key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC).hmac_hash(hashes.SHA256())
    return builder.build(store.password.encode())
