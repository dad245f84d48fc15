"""Tokens as text: what comes back is what was signed."""

from __future__ import annotations

import base64
import json
import string
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from tonnage_box.apiserver.access.signing_key import KeyPair, _ensure
from tonnage_box.apiserver.access.token import (
    ISSUER,
    MAX_TOKEN,
    KubernetesClaims,
    Reference,
    TokenClaims,
    TokenError,
    check_time,
    decode,
    encode,
    looks_like_token,
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


def test_a_token_of_another_key_is_rejected() -> None:
    with pytest.raises(TokenError):
        decode(encode(claims(), _pair()), PAIR)


@pytest.mark.parametrize(
    "text", ["", "a", "a.b", "..", "...", "a.b.c.d", "ä.b.c", "\ud800.b.c", "=.=.=", f"{'[' * 9999}.a.b"]
)
def test_what_is_no_token_is_rejected(text: str) -> None:
    with pytest.raises(TokenError):
        decode(text, PAIR)


def test_what_has_not_the_outline_of_a_token_costs_nothing() -> None:
    longest = "a" * (MAX_TOKEN - 2) + ".."
    assert looks_like_token(longest)
    assert not any(map(looks_like_token, (f"a{longest}", "a.b", "a.b.c.d", "ä.b.c")))


def test_a_token_has_one_spelling() -> None:
    """The last letter of a signature has four bits that no byte has."""
    token = encode(claims(), PAIR)
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    other = token[:-1] + letters[letters.index(token[-1]) ^ 1]
    assert base64.urlsafe_b64decode(other[-86:] + "==") == base64.urlsafe_b64decode(token[-86:] + "==")
    with pytest.raises(TokenError):
        decode(other, PAIR)


def test_a_token_with_one_more_part_is_rejected() -> None:
    token = encode(claims(), PAIR)
    for text in (f".{token}", f"{token}.", token.replace(".", "..", 1), f"{token}.{token}"):
        with pytest.raises(TokenError):
            decode(text, PAIR)


@pytest.mark.parametrize("field", ["nbf", "iat"])
def test_each_time_of_its_beginning_is_checked(field: str) -> None:
    check_time(claims(**{field: 1100}), 1040)
    with pytest.raises(TokenError):
        check_time(claims(**{field: 1100}), 1039)


@pytest.mark.parametrize(("now", "right"), [(939, False), (940, True), (2060, True), (2061, False)])
def test_times_are_checked_with_a_minute_of_leeway(now: int, right: bool) -> None:
    if right:
        check_time(claims(), now)
        return
    with pytest.raises(TokenError):
        check_time(claims(), now)
