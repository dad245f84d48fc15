"""The mounted Secret of an issuer, read anew for each use: a changed Secret needs no restart."""

from __future__ import annotations

from pathlib import Path

from tonnage.errors import InvalidError, UnavailableError, host_errors
from tonnage.inline.cert.authority import CertificateAuthority, read_authority


def load_authority(folder: Path) -> CertificateAuthority:
    """Read the mounted Secret of an issuer. Blocking. Raises UnavailableError."""
    advice = "mount a Secret of type kubernetes.io/tls there"
    with host_errors(f"certificate authority in {folder}", advice=advice, error=UnavailableError):
        certificates, key = ((folder / name).read_bytes() for name in ("tls.crt", "tls.key"))
    try:
        return read_authority(certificates, key)
    except InvalidError as error:
        raise UnavailableError(f"certificate authority in {folder}: {error}") from None
