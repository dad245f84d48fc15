"""Key usages by their names in Kubernetes and cert-manager, as X.509 extensions.

Used for attributes, requests and signing. A name belongs to the key usage or to the extended key usage, never to both.
"""

from __future__ import annotations

from collections.abc import Iterable

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from tonnage.base.errors import InvalidError

_FLAGS = {
    "signing": "digital_signature",
    "digital signature": "digital_signature",
    "content commitment": "content_commitment",
    "key encipherment": "key_encipherment",
    "data encipherment": "data_encipherment",
    "key agreement": "key_agreement",
    "cert sign": "key_cert_sign",
    "crl sign": "crl_sign",
    "encipher only": "encipher_only",
    "decipher only": "decipher_only",
}
_EXTENDED = {
    "any": ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
    "server auth": ExtendedKeyUsageOID.SERVER_AUTH,
    "client auth": ExtendedKeyUsageOID.CLIENT_AUTH,
    "code signing": ExtendedKeyUsageOID.CODE_SIGNING,
    "email protection": ExtendedKeyUsageOID.EMAIL_PROTECTION,
    "s/mime": ExtendedKeyUsageOID.EMAIL_PROTECTION,
    "ipsec end system": ObjectIdentifier("1.3.6.1.5.5.7.3.5"),
    "ipsec tunnel": ObjectIdentifier("1.3.6.1.5.5.7.3.6"),
    "ipsec user": ObjectIdentifier("1.3.6.1.5.5.7.3.7"),
    "timestamping": ExtendedKeyUsageOID.TIME_STAMPING,
    "ocsp signing": ExtendedKeyUsageOID.OCSP_SIGNING,
    "microsoft sgc": ObjectIdentifier("1.3.6.1.4.1.311.10.3.3"),
    "netscape sgc": ObjectIdentifier("2.16.840.1.113730.4.1"),
}


def is_usage(name: str) -> bool:
    """Whether the name is known."""
    return name in _FLAGS or name in _EXTENDED


def key_usage(names: Iterable[str]) -> x509.KeyUsage:
    """Build the extension of the plain usages. Raises: InvalidError for usages that exclude each other."""
    wanted = {_FLAGS[name] for name in names if name in _FLAGS}
    try:
        return x509.KeyUsage(**{flag: flag in wanted for flag in sorted(set(_FLAGS.values()))})
    except ValueError as error:
        raise InvalidError(f"key-usages: {error}") from None


def extended_key_usage(names: Iterable[str]) -> x509.ExtendedKeyUsage | None:
    """Build the extension of the extended usages, None without one."""
    found = list(dict.fromkeys(_EXTENDED[name] for name in names if name in _EXTENDED))
    return x509.ExtendedKeyUsage(found) if found else None
