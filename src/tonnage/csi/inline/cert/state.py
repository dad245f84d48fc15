"""What a volume's certificate needs after a restart of the agent: key, request, and what was issued.

One file in the volume's own folder, which is in memory; only root reads it. Replaced by rename: it is whole or absent.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tonnage.base.errors import host_errors
from tonnage.host import files

_FILE = "certificate"


class CertificateState(msgspec.Struct, frozen=True):
    """State of one volume's certificate. repr() shows no key.

    name: of the request's object. wanted: a digest of what was asked for. addresses: of the pod, where it asks for
    them. files: what is shown. again: when to renew, seconds since 1970, 0 while nothing is issued; renew: from when on
    a call renews. begins, ends: of the certificate. issued: when it was. roots: the issuer's at that time, PEM. denied:
    why, "" if not; until: when to ask again after that. replaced: name of the request before this one, to be removed.
    """

    name: str
    key: bytes
    request: bytes
    wanted: str
    files: dict[str, bytes] = {}
    again: float = 0.0
    renew: float = 0.0
    begins: float = 0.0
    ends: float = 0.0
    issued: float = 0.0
    roots: bytes = b""
    addresses: tuple[str, ...] = ()
    denied: str = ""
    until: float = 0.0
    replaced: str = ""

    def __repr__(self) -> str:
        """Name only."""
        return f"CertificateState({self.name})"


def load_state(folder: Path) -> CertificateState | None:
    """Read the state, None without one. Blocking. An unreadable one is no state: it is asked for anew."""
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=CertificateState)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def save_state(folder: Path, state: CertificateState) -> None:
    """Replace the state. Blocking. Raises: HostError."""
    with host_errors(f"volume {folder.name}: cannot record its certificate"):
        files.replace(folder / _FILE, msgspec.json.encode(state))
