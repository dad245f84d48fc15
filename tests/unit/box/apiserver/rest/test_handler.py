"""Which methods are answered where."""

from __future__ import annotations

from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.bodies import config

MAPS = "/api/v1/namespaces/default/configmaps"


async def test_methods_that_are_not_allowed(api: Api) -> None:
    assert (await api.call("POST", f"{MAPS}/x", config(), want=405))["reason"] == "MethodNotAllowed"
    await api.call("PUT", MAPS, config(), want=405)
    await api.call("POST", "/api/v1/configmaps", config(), want=405)
