"""Key that signs service account tokens: ECDSA P-256 (JWS ES256), one for a cluster.

The file (mode 0600) is made with the first token. The cryptography library is imported then: a cluster that uses no
tokens does without its 11 MiB.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tonnage.base.errors import HostError
from tonnage_box.apiserver.request.private_file import write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

ALGORITHM = "ES256"
_WIDTH = 32
"""Bytes of each of the two numbers of a signature, and of each coordinate (RFC 7518)."""


def base64url(data: bytes) -> str:
    """As JOSE encodes bytes: URL-safe, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True)
class KeyPair:
    """A key in memory. identifier: the `kid` of its tokens, a digest of the public key as Kubernetes computes it."""

    private: EllipticCurvePrivateKey
    public: EllipticCurvePublicKey
    identifier: str

    def sign(self, data: bytes) -> bytes:
        """Signature, as JWS has it: both numbers, 32 bytes each."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, utils

        first, second = utils.decode_dss_signature(self.private.sign(data, ec.ECDSA(hashes.SHA256())))
        return first.to_bytes(_WIDTH, "big") + second.to_bytes(_WIDTH, "big")

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether the signature is ours."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, utils

        if len(signature) != 2 * _WIDTH:
            return False
        first, second = int.from_bytes(signature[:_WIDTH], "big"), int.from_bytes(signature[_WIDTH:], "big")
        try:
            self.public.verify(utils.encode_dss_signature(first, second), data, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True

    def json_web_key(self) -> dict[str, str]:
        """The public key as a JWK (RFC 7517)."""
        numbers = self.public.public_numbers()
        point = {axis: base64url(getattr(numbers, axis).to_bytes(_WIDTH, "big")) for axis in ("x", "y")}
        return {"use": "sig", "kty": "EC", "kid": self.identifier, "crv": "P-256", "alg": ALGORITHM, **point}


class SigningKey:
    """The key of a cluster in its file; read or made when it is first used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pair: KeyPair | None = None
        self._lock = asyncio.Lock()

    @property
    def is_made(self) -> bool:
        """Whether there is a key; without one no token can be valid."""
        return self._pair is not None or self._path.exists()

    async def pair(self) -> KeyPair:
        """The key. Raises: HostError when its file cannot be read or written."""
        if self._pair is None:
            async with self._lock:
                if self._pair is None:
                    self._pair = await asyncio.to_thread(_ensure, self._path)
        return self._pair


def _ensure(path: Path) -> KeyPair:
    """Read the key; a missing one is made. Blocking. Raises: HostError."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        if not path.exists():
            form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            made = ec.generate_private_key(ec.SECP256R1())
            write_private(path, made.private_bytes(serialization.Encoding.PEM, form, plain))
        private = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise HostError(
            f"key of service account tokens {path}: cannot be used: {type(error).__name__}; "
            "remove it and restart the cluster: a new key is made, and tokens of the old one become invalid"
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise HostError(f"key of service account tokens {path}: is no ECDSA P-256 key; remove it and restart")
    public = private.public_key()
    form_of_public = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashlib.sha256(public.public_bytes(serialization.Encoding.DER, form_of_public)).digest()
    return KeyPair(private, public, base64url(digest))
