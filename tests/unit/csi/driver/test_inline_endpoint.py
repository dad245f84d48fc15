"""An inline driver behind its socket: what the kubelet sees of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.csi.full_client import FullCsiClient
from tests.unit.csi.inline.world import Steered

from tonnage.base.errors import UnavailableError
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver.inline_endpoint import InlineEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.inline.base import SourceNeeds
from tonnage.csi.inline.driver import InlineDriver
from tonnage.csi.inline.memory import MemoryStore
from tonnage.host import mount

CONTEXT = {
    "csi.storage.k8s.io/ephemeral": "true",
    "csi.storage.k8s.io/pod.name": "web",
    "csi.storage.k8s.io/pod.namespace": "default",
    "csi.storage.k8s.io/pod.uid": "uid-1",
}
MODE = VolumeCapability(AccessMode.SINGLE_NODE_WRITER)


@pytest.fixture
def source() -> Steered:
    return Steered()


@pytest.fixture
async def client(source: Steered, folder: Path) -> AsyncIterator[FullCsiClient]:
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    (folder / "pods").mkdir()
    driver = InlineDriver("d.test", source, MemoryStore(folder / "mem", 2 << 20))
    endpoint = InlineEndpoint(driver, folder / "csi.sock", node_id="n", roots=(folder,), registry=folder)
    await endpoint.start()
    try:
        async with FullCsiClient(endpoint.socket) as connected:
            yield connected
    finally:
        await endpoint.stop()
        for one in reversed([one.target for one in mount.mounts() if one.target.startswith(f"{folder}/")]):
            mount.umount(one, lazy=True)


async def test_a_pod_gets_its_content_with_its_group_and_usage(
    client: FullCsiClient, source: Steered, folder: Path
) -> None:
    mode = VolumeCapability(AccessMode.SINGLE_NODE_WRITER, mount_group="2000")
    target = folder / "pods" / "t"
    for _ in range(2):
        await client.publish("csi-1", str(target), mode, context={**CONTEXT, "colour": "red"}, secrets={"s": "secret"})
    (ask,) = source.asked
    assert (ask.pod.namespace, ask.pod.name, ask.pod.uid, ask.pod.fs_group) == ("default", "web", "uid-1", 2000)
    assert ask.attributes == {"colour": "red"}
    assert ask.pod.secrets == {"s": "secret"}
    assert (target / "a").stat().st_gid == 2000
    stats = await client.volume_stats("csi-1", str(target))
    assert (stats.used, stats.total) == (3, 1 << 20)
    await client.unpublish("csi-1", str(target))
    assert not target.exists()


async def test_after_a_success_no_repeated_call_fails(client: FullCsiClient, source: Steered, folder: Path) -> None:
    source.needs = SourceNeeds(republish=True)
    target = str(folder / "pods" / "t")
    await client.publish("csi-1", target, MODE, context=CONTEXT)
    for failure in (UnavailableError("away"), KeyError("bug")):
        source.result = failure
        await client.publish("csi-1", target, MODE, context=CONTEXT)
    with pytest.raises(CsiError) as raised:
        await client.publish("csi-2", str(folder / "pods" / "u"), MODE, context=CONTEXT)
    assert raised.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    ("mode", "context", "text"),
    [
        (VolumeCapability(AccessMode.SINGLE_NODE_WRITER, block=True), CONTEXT, "raw block"),
        (VolumeCapability(AccessMode.SINGLE_NODE_WRITER, mount_group="staff"), CONTEXT, "want a number"),
        (MODE, {}, "no PersistentVolumes"),
        (MODE, {**CONTEXT, "x": "y"}, "unknown to driver"),
        (MODE, {**CONTEXT, "csi.storage.k8s.io/serviceAccount.tokens": "{"}, "cannot be read"),
    ],
)
async def test_what_cannot_be_is_rejected(
    client: FullCsiClient, folder: Path, mode: VolumeCapability, context: dict[str, str], text: str
) -> None:
    with pytest.raises(CsiError, match=text) as raised:
        await client.publish("csi-1", str(folder / "pods" / "t"), mode, context=context)
    assert raised.value.code is Code.INVALID_ARGUMENT
