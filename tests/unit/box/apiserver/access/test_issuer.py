"""Discovery of the issuer: whoever reads the documents can check a token."""

from __future__ import annotations

from tests.unit.box.apiserver.access.served import Served


async def test_service_accounts_read_the_keys_of_their_tokens(served: Served) -> None:
    token = await served.token()
    status, found = await served.send("GET", "/.well-known/openid-configuration", token=token)
    assert (status, found["id_token_signing_alg_values_supported"]) == (200, ["ES256"])
    status, keys = await served.send("GET", "/openid/v1/jwks", token=token)
    assert served.access.key is not None
    assert (status, keys["keys"]) == (200, [(await served.access.key.pair()).json_web_key()])
