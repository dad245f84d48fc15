"""JSON Web Tokens of service accounts: their claims, encoding and checks (pkg/serviceaccount of Kubernetes)."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from tonnage_box.apiserver.access.signing_key import ALGORITHM, KeyPair, base64url

ISSUER = "https://kubernetes.default.svc.cluster.local"
"""Issuer of all tokens, and the audience of this API server."""
MAX_TOKEN = 16 << 10
LEEWAY = 60
"""Seconds by which the clocks of a token's maker and of its reader may differ."""


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object that a token is bound to."""

    name: str = ""
    uid: str = ""


class KubernetesClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """Claims of Kubernetes: the account, and the object with which the token ends."""

    namespace: str = ""
    serviceaccount: Reference = Reference()
    pod: Reference | None = None
    secret: Reference | None = None
    node: Reference | None = None
    warnafter: int | None = None


class TokenClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """Claims of a token. Times: seconds since the epoch."""

    aud: list[str]
    exp: int
    iat: int
    iss: str
    jti: str
    kubernetes: KubernetesClaims = msgspec.field(name="kubernetes.io")
    nbf: int = 0
    sub: str = ""


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str = ""


class TokenError(Exception):
    """A token that is not valid. The text never holds any part of it."""


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(_Header).decode
_claims = msgspec.json.Decoder(TokenClaims).decode


def encode(claims: TokenClaims, pair: KeyPair) -> str:
    """The signed token."""
    header: dict[str, Any] = {"alg": ALGORITHM, "kid": pair.identifier}
    signed = f"{base64url(_encode(header))}.{base64url(_encode(claims))}"
    return f"{signed}.{base64url(pair.sign(signed.encode()))}"


def looks_like_token(text: str) -> bool:
    """Whether the text has the outline of a JSON Web Token: others cost nothing to reject."""
    return len(text) <= MAX_TOKEN and text.count(".") == 2 and text.isascii()


def decode(text: str, pair: KeyPair) -> TokenClaims:
    """The claims of a token that this key signed; times and objects are not checked. Raises: TokenError."""
    signed, _, signature = text.rpartition(".")
    header, _, payload = signed.partition(".")
    try:
        found = _header(_bytes(header))
        # The algorithm is ours, whatever the token says: "none" or a symmetric one never selects another check.
        if found.alg != ALGORITHM or found.kid not in ("", pair.identifier):
            raise TokenError("signed by another key or algorithm")
        if not pair.verify(signed.encode(), _bytes(signature)):
            raise TokenError("wrong signature")
        return _claims(_bytes(payload))
    except (ValueError, RecursionError) as error:
        raise TokenError(f"damaged: {type(error).__name__}") from None


def check_time(claims: TokenClaims, now: float) -> None:
    """Check that a token is valid now, in seconds since the epoch. Raises: TokenError."""
    if now > claims.exp + LEEWAY:
        raise TokenError("service account token has expired")
    if claims.nbf > now + LEEWAY:
        raise TokenError("service account token is not valid yet")
    if claims.iat > now + LEEWAY:
        raise TokenError("service account token is issued in the future")


def _bytes(part: str) -> bytes:
    """Decode strictly, so that each token has one spelling. Raises: ValueError."""
    if "=" in part:
        raise ValueError("padding")
    try:
        data = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if base64url(data) != part:
        raise ValueError("not canonical")
    return data
