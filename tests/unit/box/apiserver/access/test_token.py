"""Tokens as text: what comes back is what was signed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from tonnage.box.apiserver.access.signing_key import KeyPair, _ensure
from tonnage.box.apiserver.access.token import (
    ISSUER,
    KubernetesClaims,
    Reference,
    TokenClaims,
    TokenError,
    check_time,
    decode,
    encode,
)


def _pair() -> KeyPair:
    with TemporaryDirectory() as folder:
        return _ensure(Path(folder) / "key")


PAIR = _pair()


def claims(**changes: int) -> TokenClaims:
    times = {"exp": 2000, "iat": 1000, "nbf": 1000} | changes
    account = KubernetesClaims("ns", Reference("robot", "u-1"))
    return TokenClaims(
        [ISSUER], times["exp"], times["iat"], ISSUER, "id", account, times["nbf"], "system:serviceaccount:x"
    )


def test_what_was_signed_comes_back() -> None:
    assert decode(encode(claims(), PAIR), PAIR) == claims()


def test_anyone_can_verify_with_the_public_key() -> None:
    signed, _, text = encode(claims(), PAIR).rpartition(".")
    raw = base64.urlsafe_b64decode(text + "==")
    signature = utils.encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    PAIR.public.verify(signature, signed.encode(), ec.ECDSA(hashes.SHA256()))
    header = json.loads(base64.urlsafe_b64decode(signed.split(".")[0] + "=="))
    assert header == {"alg": "ES256", "kid": PAIR.identifier}
    body = json.loads(base64.urlsafe_b64decode(signed.split(".")[1] + "=="))
    assert body["kubernetes.io"] == {"namespace": "ns", "serviceaccount": {"name": "robot", "uid": "u-1"}}


def test_a_token_of_another_key_is_refused() -> None:
    with pytest.raises(TokenError):
        decode(encode(claims(), _pair()), PAIR)


@pytest.mark.parametrize(("now", "right"), [(939, False), (940, True), (2060, True), (2061, False)])
def test_times_are_checked_with_a_minute_of_leeway(now: int, right: bool) -> None:
    if right:
        check_time(claims(), now)
        return
    with pytest.raises(TokenError):
        check_time(claims(), now)
