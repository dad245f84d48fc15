"""TokenRequest: defaults, limits and what a token may be bound to."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.unit.box.apiserver.access.served import TOKEN_PATH, Served, make_pod

from tonnage_box.apiserver.access.token import ISSUER


def claims(token: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))


async def test_defaults_are_an_hour_and_this_api_server(served: Served) -> None:
    status, body = await served.send("POST", TOKEN_PATH, {})
    assert status == 201
    assert body["kind"] == "TokenRequest"
    assert body["spec"] == {"audiences": [ISSUER], "expirationSeconds": 3600}
    found = claims(body["status"]["token"])
    assert found["exp"] - found["iat"] == 3600
    assert (found["aud"], found["iss"], found["nbf"]) == ([ISSUER], ISSUER, found["iat"])
    assert found["sub"] == "system:serviceaccount:default:robot"
    assert found["kubernetes.io"]["serviceaccount"]["uid"] == body["metadata"]["uid"]


async def test_the_automatic_token_of_a_pod_lives_a_year_and_says_when_it_is_old(served: Served) -> None:
    await make_pod(served)
    ref = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
    found = claims(await served.token(expirationSeconds=3607, boundObjectRef=ref))
    assert found["exp"] - found["iat"] == 365 * 24 * 3600
    assert found["kubernetes.io"]["warnafter"] - found["iat"] == 3607
    other = claims(await served.token(expirationSeconds=3607, boundObjectRef=ref, audiences=["vault"]))
    assert other["exp"] - other["iat"] == 3607


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "code", "text"),
    [
        ({"expirationSeconds": 599}, 422, "may not specify a duration less than 10 minutes"),
        ({"expirationSeconds": -1}, 422, "may not specify a duration less than 10 minutes"),
        ({"expirationSeconds": (1 << 32) + 1}, 422, "may not specify a duration larger than 2^32 seconds"),
        ({"expirationSeconds": "x"}, 400, "cannot be handled as a TokenRequest"),
        ({"audiences": "x"}, 400, "cannot be handled as a TokenRequest"),
        ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "gone"}}, 404, 'pods "gone" not found'),
        ({"boundObjectRef": {"kind": "Pod", "name": "p"}}, 400, "cannot bind token to object of type"),
        ({"boundObjectRef": {"kind": "Service", "apiVersion": "v1", "name": "p"}}, 400, "cannot bind token to object"),
        ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "q"}}, 400, "different serviceaccount name"),
        (
            {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "x"}},
            409,
            "does not match the UID in record",
        ),
    ],
)
async def test_what_is_rejected(served: Served, spec: Any, code: int, text: str) -> None:
    await make_pod(served)
    await make_pod(served, "q", "default")
    status, body = await served.send("POST", TOKEN_PATH, {"spec": spec})
    assert (status, text in body["message"]) == (code, True), body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"kind": "Pod", "apiVersion": "v1"}, 400),
        ({"metadata": {"name": "other"}}, 422),
        ({"metadata": {"namespace": "other"}}, 422),
        ({"metadata": {"uid": "other"}}, 409),
        ({"spec": []}, 400),
        ([], 400),
    ],
)
async def test_a_request_about_another_account_is_rejected(served: Served, body: Any, code: int) -> None:
    assert (await served.send("POST", TOKEN_PATH, body))[0] == code


async def test_an_account_that_is_not_there_has_no_tokens(served: Served) -> None:
    status, body = await served.send("POST", TOKEN_PATH.replace("robot", "gone"), {})
    assert (status, body["message"]) == (404, 'serviceaccounts "gone" not found')
