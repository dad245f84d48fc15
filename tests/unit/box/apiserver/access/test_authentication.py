"""Whose token it is; a token that is not valid now opens nothing."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.box.apiserver.access.served import REVIEWS, Served, make_pod

from tonnage.kubernetes.api.kinds import PODS, SECRETS, SERVICE_ACCOUNTS
from tonnage_box.apiserver.access.signing_key import base64url
from tonnage_box.apiserver.access.token import ISSUER, TokenError

WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def who(served: Served, token: str) -> tuple[int, Any]:
    return await served.send("POST", WHO, {}, token=token)


async def test_a_token_names_its_account_with_groups_and_pod(served: Served) -> None:
    uid = await make_pod(served, node="n1")
    token = await served.token(boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"})
    status, body = await who(served, token)
    assert status == 201
    found = body["status"]["userInfo"]
    assert found["username"] == "system:serviceaccount:default:robot"
    assert found["groups"] == ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
    assert found["extra"]["authentication.kubernetes.io/pod-uid"] == [uid]
    assert found["extra"]["authentication.kubernetes.io/node-name"] == ["n1"]
    assert found["extra"]["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")


async def test_a_token_ends_with_its_time(served: Served) -> None:
    token = await served.token(expirationSeconds=600)
    served.clock.now += 599
    assert (await who(served, token))[0] == 201
    served.clock.now += 62  # a minute more: clocks differ
    assert (await who(served, token))[0] == 401
    served.clock.now -= 3600
    assert (await who(served, token))[0] == 401  # not valid yet


async def test_a_token_ends_with_its_account_and_a_new_one_of_that_name_does_not_revive_it(served: Served) -> None:
    token = await served.token()
    assert (await who(served, token))[0] == 201
    await served.client.delete(SERVICE_ACCOUNTS, "robot", "default")
    assert (await who(served, token))[0] == 401
    await served.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot"}}, "default")
    assert (await who(served, token))[0] == 401


async def test_a_token_ends_with_the_object_that_it_is_bound_to(served: Served) -> None:
    await make_pod(served)
    await served.client.create(SECRETS, {"metadata": {"name": "s"}}, "default")
    of_pod = await served.token(boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"})
    of_secret = await served.token(boundObjectRef={"kind": "Secret", "apiVersion": "v1", "name": "s"})
    assert [(await who(served, token))[0] for token in (of_pod, of_secret)] == [201, 201]
    await served.client.delete(PODS, "p", "default", grace_seconds=0)
    assert [(await who(served, token))[0] for token in (of_pod, of_secret)] == [401, 201]
    await served.client.delete(SECRETS, "s", "default")
    assert (await who(served, of_secret))[0] == 401


async def test_what_is_deleted_and_kept_by_a_finalizer_ends_its_tokens_after_a_minute(served: Served) -> None:
    meta = {"name": "kept", "finalizers": ["example.com/keep"]}
    await served.client.create(SERVICE_ACCOUNTS, {"metadata": meta}, "default")
    token = await served.token(path="/api/v1/namespaces/default/serviceaccounts/kept/token")
    await served.client.delete(SERVICE_ACCOUNTS, "kept", "default")
    assert (await who(served, token))[0] == 201
    served.clock.now += 62
    assert (await who(served, token))[0] == 401


async def test_a_token_for_another_audience_is_for_its_reviewer_only(served: Served) -> None:
    token = await served.token(audiences=["vault"])
    assert (await who(served, token))[0] == 401
    for audiences, right in ((["vault", "other"], ["vault"]), (["other"], None), ([], None)):
        status, body = await served.send("POST", REVIEWS, {"spec": {"token": token, "audiences": audiences}})
        assert status == 201
        assert body["status"].get("audiences") == right
        assert body["status"].get("authenticated", False) is (right is not None)
        assert token not in json.dumps(body)


def _parts(token: str) -> list[Any]:
    return [json.loads(base64.urlsafe_b64decode(part + "==")) for part in token.split(".")[:2]]


async def test_a_token_that_we_did_not_sign_is_rejected_whatever_it_says(served: Served) -> None:
    token = await served.token()
    header, claims = _parts(token)
    signature = token.rpartition(".")[2]
    admin = claims | {"sub": "system:admin"}
    key = (await served.access.key.pair()).json_web_key() if served.access.key is not None else {}
    for changed in ({"alg": "none"}, {"alg": "HS256"}, {"alg": "ES256", "jwk": key}, header):
        for body in (claims, admin):
            text = ".".join(base64url(json.dumps(part).encode()) for part in (changed, body))
            for end in ("", signature):
                assert (await who(served, f"{text}.{end}"))[0] == 401
    for damaged in (token[:-1], token + "A", token[:40], token + "=", f"{token}.", "..", "a.b.c", token.lower()):
        assert (await who(served, damaged))[0] == 401
    assert (await who(served, token))[0] == 201


@pytest.mark.parametrize("size", [20_000, 60_000, 1_000_000])
async def test_large_headers_are_rejected(served: Served, size: int) -> None:
    status, _ = await who(served, "e" * size + ".e.e")
    assert status in (400, 401)
    assert (await served.send("GET", "/version"))[0] == 200


@examples(300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damaged_token_is_taken_and_none_raises_anything_else(data: st.DataObject) -> None:
    import asyncio

    asyncio.run(_damaged(data))


async def _damaged(data: st.DataObject) -> None:
    from tests.unit.box.apiserver.access.test_token import PAIR, claims  # made once: a key takes a while

    from tonnage.base.aio.clock import RealClock
    from tonnage_box.apiserver.access.authentication import Authenticator
    from tonnage_box.apiserver.storage.store import Store

    class _Key:
        is_made = True

        async def pair(self) -> Any:
            return PAIR

    from tonnage_box.apiserver.access.token import encode

    token = encode(claims(), PAIR)
    index = data.draw(st.integers(0, len(token) - 1))
    text = data.draw(
        st.one_of(
            st.text(max_size=300),
            st.tuples(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80)).map(
                lambda parts: ".".join(base64url(part) for part in parts)
            ),
            st.characters(codec="ascii").map(lambda c: token[:index] + c + token[index + 1 :]),
        )
    )
    authenticator = Authenticator(Store(lambda c, o: {}), RealClock(), _Key(), lambda token: False)  # type: ignore[arg-type]
    with pytest.raises(TokenError):
        await authenticator.token_user(text, [ISSUER])
