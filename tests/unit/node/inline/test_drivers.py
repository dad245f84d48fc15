"""The inline drivers of a node: each has its socket; one that cannot start does not stop the others."""

from __future__ import annotations

import asyncio
import os

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.csi.inline.base import InlinePod
from tonnage.host import mount
from tonnage.kubernetes.api.kinds import EVENTS
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.node.inline.config import parse_inlines
from tonnage.node.inline.drivers import InlineDrivers, pod_events
from tonnage.node.inline.sources import InlineContext
from tonnage_box.testing.apiserver import api_server, client
from tonnage_box.testing.wait import eventually


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
async def test_each_driver_has_its_socket_and_one_that_fails_stops_no_other(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path_factory.mktemp("i")
    context = InlineContext("n", None, lambda pod, type_, reason, message: None, RealClock())
    configs = parse_inlines(["node-labels,name=one.test", "node-labels,name=two.test"])
    (folder / "registry").mkdir()
    (folder / "plugins" / "one.test").mkdir(parents=True)
    (folder / "plugins" / "one.test" / "mem").write_text("in the way")
    drivers = InlineDrivers(configs, context, kubelet=folder, registry=folder / "registry")
    try:
        await drivers.start()
        assert drivers.names == ["one.test", "two.test"]
        assert (folder / "plugins" / "two.test" / "csi.sock").is_socket()
        assert [one.name for one in (folder / "registry").iterdir()] == ["two.test-reg.sock"]
        assert "driver=one.test" in caplog.text
    finally:
        await drivers.stop()
        mount.umount(folder / "plugins" / "two.test" / "mem")


async def test_events_are_of_the_pod() -> None:
    async with api_server() as server:
        api = client(server)
        recorder = EventRecorder(api, "tonnage-node")
        pod_events(recorder)(InlinePod("default", "web", "uid-1"), "Warning", "InlineFailed", "no such thing")

        writing = asyncio.ensure_future(recorder.run())
        try:
            await eventually(lambda: _events(api))
        finally:
            writing.cancel()


async def _events(api: object) -> bool:
    found = await api.list(EVENTS)  # type: ignore[attr-defined]
    return [(one.involved_object.uid, one.reason) for one in found.items] == [("uid-1", "InlineFailed")]
