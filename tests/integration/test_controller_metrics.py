"""What a replica of `tonnage controller` serves over HTTP, in real time."""

from __future__ import annotations

import asyncio
import urllib.request

from tonnage.base.observe.exporter import Address
from tonnage.controller.app import controller_process
from tonnage.controller.config import ControllerConfig
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store


async def test_metrics_and_liveness_are_served_by_all_replicas() -> None:
    server = ApiServer(Store(extractor()))
    await server.start()
    await Client(server.transport("system:admin")).create(
        kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}}
    )
    for name in ("one", "two"):
        client = Client(server.transport("system:admin"))
        process = controller_process(ControllerConfig(name, metrics=Address("127.0.0.1", 0)), client)
        await process.start()
        for path, text in (("metrics", "tonnage_controller_leads"), ("healthz", "ok")):
            assert text in await asyncio.to_thread(_read, process.metrics_url.replace("metrics", path))
        await process.stop()
        assert process.metrics_url == ""
    await server.stop()


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())
