"""kube-root-ca.crt in each namespace, restored when it is changed or deleted."""

from __future__ import annotations

from tests.unit.fixture_types import Running

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, NAMESPACES
from tonnage.kubernetes.api.names import ROOT_CA
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.root_certificate import RootCertificatePublisher
from tonnage_box.testing.wait import Eventually


async def test_each_namespace_has_it(
    kube: Client, informers: Informers, running: Running, eventually: Eventually
) -> None:
    async def right() -> bool:
        try:
            return (await kube.get(CONFIG_MAPS, ROOT_CA, "ns")).data == {"ca.crt": "PEM"}
        except ApiNotFoundError:
            return False

    async with running(RootCertificatePublisher(kube, informers, "PEM")):
        await kube.create(NAMESPACES, {"metadata": {"name": "ns"}})
        assert await eventually(right)
        await kube.patch(CONFIG_MAPS, ROOT_CA, {"data": {"ca.crt": "other", "more": "x"}}, "ns")
        await kube.patch(CONFIG_MAPS, ROOT_CA, {"data": {"more": None}}, "ns")
        assert await eventually(right)
        await kube.delete(CONFIG_MAPS, ROOT_CA, "ns")
        assert await eventually(right)
