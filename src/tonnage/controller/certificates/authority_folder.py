"""The mounted Secret of an issuer, read anew for each use: a changed Secret needs no restart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.errors import InvalidError, UnavailableError, host_errors
from tonnage.csi.inline.cert.authority import CertificateAuthority, read_authority


@dataclass(frozen=True)
class AuthorityFolder:
    """A folder with tls.crt and tls.key; a call reads them."""

    path: Path

    async def __call__(self) -> CertificateAuthority:
        """Read the authority. Raises: UnavailableError."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> CertificateAuthority:
        advice = "mount a Secret of type kubernetes.io/tls there"
        with host_errors(f"certificate authority in {self.path}", advice=advice, error=UnavailableError):
            certificates, key = ((self.path / name).read_bytes() for name in ("tls.crt", "tls.key"))
        try:
            return read_authority(certificates, key)
        except InvalidError as error:
            raise UnavailableError(f"certificate authority in {self.path}: {error}") from None
