"""The account `default` of each namespace."""

from __future__ import annotations

from typing import Any

from tests.unit.fixture_types import Running

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.service_account import ServiceAccountController
from tonnage_box.testing.wait import Eventually


async def make_namespace(kube: Client) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": "ns"}})
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "m"}}, "ns")
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "kept"}}, "default")


async def test_default_service_account_is_made_and_comes_back(
    kube: Client, informers: Informers, running: Running, eventually: Eventually
) -> None:
    async def account() -> Any:
        try:
            return await kube.get(SERVICE_ACCOUNTS, "default", "ns")
        except ApiNotFoundError:
            return None

    async with running(ServiceAccountController(kube, informers)):
        await make_namespace(kube)
        first = await eventually(account)
        await kube.delete(SERVICE_ACCOUNTS, "default", "ns")

        async def again() -> bool:
            now = await account()
            return now is not None and now.metadata.uid != first.metadata.uid

        assert await eventually(again)
