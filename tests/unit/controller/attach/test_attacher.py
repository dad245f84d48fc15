"""Attaching and detaching: the objects of external-attacher, the calls of CSI, and what is rejected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.controller.attach.world import FINALIZER, AttachWorld, Served, serving
from tests.unit.controller.snapshots.world import Recording

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import PreconditionError
from tonnage.base.observe import metrics
from tonnage.controller.attach.attacher import PROTECTORS, WORKERS, VolumeProtector
from tonnage.controller.attach.decision import NODE_ID
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api.kinds import ATTACHMENTS, CSI_NODES, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response
from tonnage.provisioning.claims.bind import find
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing.network_driver import NETWORK_DRIVER
from tonnage_box.testing.wait import eventually


@pytest.fixture
def world(kube: Client) -> AttachWorld:
    return AttachWorld(kube)


@pytest.fixture
def writes(api_server: ApiServer) -> Recording:
    """The controller's transport."""
    return Recording(api_server.transport("system:admin"))


@pytest.fixture
async def served(world: AttachWorld, writes: Recording) -> AsyncIterator[Served]:
    async with serving(Client(writes), world.storage, RealClock()) as found:
        yield found


async def test_a_volume_is_attached_and_detached_in_as_few_writes_as_there_are(
    world: AttachWorld, served: Served, writes: Recording
) -> None:
    await world.node("n1")
    await world.volume("v")
    name = await world.attach("n1")
    one = await world.attached(name)
    assert one.metadata.finalizers == [FINALIZER]
    assert one.metadata.annotations == {NODE_ID: "id-n1"}
    assert one.status == {"attached": True, "attachmentMetadata": {"token": "h-v@id-n1"}}
    assert (await world.kube.get(VOLUMES, "v")).metadata.finalizers == [FINALIZER]
    assert world.storage.calls == ["publish h-v id-n1"]
    assert writes.writes == [
        "PATCH persistentvolumes/v",
        f"PATCH volumeattachments/{name}",
        f"PATCH volumeattachments/{name}/status",
    ]
    writes.writes.clear()
    await world.detach(name)
    await world.gone(name)
    assert world.storage.calls == ["publish h-v id-n1", "unpublish h-v id-n1"]
    assert writes.writes == [f"PATCH volumeattachments/{name}"]
    writes.writes.clear()
    await world.kube.delete(VOLUMES, "v")
    await eventually(lambda: _is_gone(world, "v"))
    assert writes.writes == ["PATCH persistentvolumes/v"]


class Slow(Recording):
    """A transport on which the writes of some PVs wait."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.go_on = asyncio.Event()

    async def request(self, request: Request) -> Response:
        """Send, after all that waits has been told to go on."""
        if request.method == "PATCH" and "/persistentvolumes/old-" in request.path:
            await self.go_on.wait()
        return await super().request(request)


async def test_bound_volumes_of_a_first_start_do_not_make_an_attachment_wait(
    world: AttachWorld, api_server: ApiServer
) -> None:
    slow = Slow(api_server.transport("system:admin"))
    old = [f"old-{number}" for number in range(WORKERS + PROTECTORS)]
    for name in old:
        await world.volume(name)
        await world.bind(name)
    await world.node("n1")
    await world.volume("v")
    async with serving(Client(slow), world.storage, RealClock()):
        await world.attached(await world.attach("n1"))
        assert [line for line in slow.writes if "old-" in line] == []
        slow.go_on.set()

        async def protected() -> bool:
            found = [await world.kube.get(VOLUMES, name) for name in old]
            return all(one.metadata.finalizers == [FINALIZER] for one in found)

        await eventually(protected)
    assert len([line for line in slow.writes if "old-" in line]) == len(old)


async def _is_gone(world: AttachWorld, volume: str) -> bool:
    return await find(world.kube, VOLUMES, volume) is None


async def test_a_second_node_is_rejected_until_the_first_is_detached(world: AttachWorld, served: Served) -> None:
    for node in ("n1", "n2"):
        await world.node(node)
    await world.volume("v")
    first = await world.attach("n1")
    await world.attached(first)
    second = await world.attach("n2")
    assert await world.failed(second) == (
        'PersistentVolume "v": access mode ReadWriteOnce allows one node, and the volume is attached to node n1; it is'
        " attached here when it is detached there"
    )
    assert world.storage.calls == ["publish h-v id-n1"], "the driver is not asked"
    await world.detach(first)
    one = await world.attached(second)
    assert "attachError" not in one.status
    assert world.storage.volumes["h-v"].nodes == {"id-n2": False}


async def test_of_two_attachments_that_are_made_at_once_one_is_attached(world: AttachWorld, writes: Recording) -> None:
    for node in ("n1", "n2"):
        await world.node(node)
    await world.volume("v")
    names = [await world.attach(node) for node in ("n1", "n2")]
    async with serving(Client(writes), world.storage, RealClock()):

        async def decided() -> bool:
            found = [await world.get(name) for name in names]
            return sorted((one.attached, "attachError" in one.status) for one in found if one) == [
                (False, True),
                (True, False),
            ]

        await eventually(decided)
    assert len(world.storage.volumes["h-v"].nodes) == 1
    assert len(world.storage.calls) == 1


@pytest.mark.parametrize("mode", ["ReadWriteMany", "ReadOnlyMany"])
async def test_a_shared_volume_is_attached_to_many_nodes(world: AttachWorld, served: Served, mode: str) -> None:
    await world.volume("v", mode)
    for node in ("n1", "n2", "n3"):
        await world.node(node)
        await world.attached(await world.attach(node))
    assert set(world.storage.volumes["h-v"].nodes) == {"id-n1", "id-n2", "id-n3"}


async def test_a_node_that_is_gone_or_was_replaced_is_detached_by_the_id_it_had(
    world: AttachWorld, served: Served
) -> None:
    await world.node("n1")
    await world.node("n2")
    for volume, node in (("v", "n1"), ("w", "n2")):
        await world.volume(volume)
        await world.attached(await world.attach(node, volume))
    await world.kube.delete(CSI_NODES, "n1")
    await world.kube.delete(CSI_NODES, "n2")
    await world.node("n2", "another-machine")
    for one in (await world.kube.list(ATTACHMENTS)).items:
        await world.detach(one.metadata.name)
        await world.gone(one.metadata.name)
    assert sorted(world.storage.calls[2:]) == ["unpublish h-v id-n1", "unpublish h-w id-n2"]


async def test_a_node_without_the_driver_is_waited_for(world: AttachWorld, served: Served) -> None:
    await world.volume("v")
    name = await world.attach("n1")
    assert await world.failed(name) == (
        f"node n1: its CSINode does not list driver {NETWORK_DRIVER}; start the driver on that node"
    )
    assert (await world.kube.get(ATTACHMENTS, name)).metadata.finalizers == [], "nothing holds it"
    await world.node("n1")
    await world.attached(name)


@pytest.mark.slow
async def test_an_error_of_the_driver_is_written_once_and_the_call_repeated(
    world: AttachWorld, served: Served, writes: Recording
) -> None:
    failures = [CsiError(Code.RESOURCE_EXHAUSTED, "no more ports")] * 2

    def fault(call: str) -> None:
        if failures:
            raise failures.pop()

    world.storage.fault = fault
    await world.node("n1")
    await world.volume("v")
    name = await world.attach("n1")
    text = await world.failed(name)
    assert text == "rpc error: code = ResourceExhausted desc = no more ports"
    one = await world.get(name)
    assert one is not None
    assert one.status["attachError"]["errorCode"] == 8
    await world.attached(name)
    statuses = [write for write in writes.writes if write.endswith("/status")]
    assert len(statuses) == 2, "the error once, for two failures, and the success"


async def test_an_attachment_that_could_not_be_detached_says_why(world: AttachWorld, served: Served) -> None:
    await world.node("n1")
    await world.volume("v")
    name = await world.attach("n1")
    await world.attached(name)
    broken = True

    def fault(call: str) -> None:
        if broken and call == "unpublish":
            raise CsiError(Code.UNAVAILABLE, "the storage is away")

    world.storage.fault = fault
    await world.detach(name)
    assert await world.failed(name, "detachError") == "rpc error: code = Unavailable desc = the storage is away"
    assert served.attacher.counts(NETWORK_DRIVER) == {"attached": 0, "attaching": 0, "detaching": 0, "failed": 1}
    broken = False
    await world.gone(name)


async def test_states_are_counted_while_the_controller_serves(world: AttachWorld, writes: Recording) -> None:
    await world.node("n1")
    await world.volume("v")
    async with serving(Client(writes), world.storage, RealClock()) as ended:
        await world.attached(await world.attach("n1"))
        await eventually(lambda: _shown(1))
    assert ended.attacher.counts(NETWORK_DRIVER)["attached"] == 1
    assert not await _shown(1), "garbage of an earlier term, which may live long, is not counted"
    async with serving(Client(writes), world.storage, RealClock()):
        await eventually(lambda: _shown(1))


async def _shown(attached: int) -> bool:
    line = f'tonnage_volume_attachments{{driver="{NETWORK_DRIVER}",state="attached"}} {attached}.0'
    return line in metrics.render().decode()


async def test_a_volume_that_is_being_deleted_is_not_attached(world: AttachWorld, served: Served) -> None:
    await world.node("n1")
    await world.volume("v")
    await world.kube.patch(VOLUMES, "v", {"metadata": {"finalizers": ["example.com/other"]}})
    await world.kube.delete(VOLUMES, "v")
    name = await world.attach("n1")
    assert await world.failed(name) == 'PersistentVolume "v" is marked for deletion'
    assert world.storage.calls == []


async def test_a_bound_volume_is_protected_before_a_pod_needs_it(
    world: AttachWorld, served: Served, writes: Recording
) -> None:
    await world.node("n1")
    await world.volume("v")
    await world.volume("unused")
    await world.bind("v")
    await eventually(lambda: _is_protected(world, "v"))
    assert writes.writes == ["PATCH persistentvolumes/v"], "another volume may never be used"
    writes.writes.clear()
    name = await world.attach("n1")
    await world.attached(name)
    assert writes.writes == [f"PATCH volumeattachments/{name}", f"PATCH volumeattachments/{name}/status"]


async def test_a_bound_volume_that_was_never_attached_can_be_deleted(world: AttachWorld, served: Served) -> None:
    await world.volume("v")
    await world.bind("v")
    await eventually(lambda: _is_protected(world, "v"))
    await world.kube.delete(VOLUMES, "v")
    await eventually(lambda: _is_gone(world, "v"))


async def _is_protected(world: AttachWorld, volume: str) -> bool:
    return FINALIZER in (await world.kube.get(VOLUMES, volume)).metadata.finalizers


async def test_an_attached_volume_keeps_its_object(world: AttachWorld, served: Served) -> None:
    await world.node("n1")
    await world.volume("v")
    name = await world.attach("n1")
    await world.attached(name)
    await world.kube.delete(VOLUMES, "v")
    assert (await world.kube.get(VOLUMES, "v")).metadata.deleting
    await world.detach(name)
    await world.gone(name)
    await eventually(lambda: _is_gone(world, "v"))
    assert world.storage.calls == ["publish h-v id-n1", "unpublish h-v id-n1"]


async def test_a_volume_that_is_deleted_before_it_is_protected_is_not_attached(
    world: AttachWorld, served: Served
) -> None:
    """Somebody else holds the PV. It would vanish while it is attached: the cache is behind the API server."""
    await world.node("n1")
    await world.volume("v")
    seen = served.attacher.protector
    await eventually(lambda: _is_seen(seen, "v"))
    before = seen._volumes.get("v")
    assert before is not None
    await world.kube.patch(VOLUMES, "v", {"metadata": {"finalizers": ["example.com/other"]}})
    await world.kube.delete(VOLUMES, "v")
    driver = served.drivers.get(NETWORK_DRIVER)
    assert driver is not None
    with pytest.raises(PreconditionError, match="marked for deletion"):
        await seen.protect(before, driver)


async def _is_seen(protector: VolumeProtector, volume: str) -> bool:
    return protector._volumes.get(volume) is not None and protector._drivers.get(NETWORK_DRIVER) is not None


async def test_finalizers_of_others_stay(world: AttachWorld, served: Served) -> None:
    await world.node("n1")
    await world.volume("v")
    name = await world.attach("n1", finalizers=["example.com/other"])
    await world.attached(name)
    await world.detach(name)

    async def released() -> bool:
        one = await world.get(name)
        return one is not None and one.metadata.finalizers == ["example.com/other"]

    await eventually(released)
    one = await world.get(name)
    assert one is not None
    assert one.status == {"attached": False}


async def test_secrets_and_reading_only(world: AttachWorld, served: Served) -> None:
    world.storage.secret = "open sesame"
    await world.secret("open sesame")
    await world.node("n1")
    ref = {"name": "key", "namespace": "default"}
    await world.volume("v", "ReadOnlyMany", controllerPublishSecretRef=ref, readOnly=True)
    name = await world.attach("n1")
    await world.attached(name)
    assert world.storage.volumes["h-v"].nodes == {"id-n1": True}
    await world.detach(name)
    await world.gone(name)


async def test_a_missing_secret_is_named_and_waited_for(world: AttachWorld, served: Served) -> None:
    await world.node("n1")
    await world.volume("v", controllerPublishSecretRef={"name": "key", "namespace": "default"})
    name = await world.attach("n1")
    assert await world.failed(name) == 'secrets "key" not found'
    world.storage.secret = "x"
    await world.secret("x")
    await world.attached(name)


async def test_attachments_of_other_drivers_and_damaged_ones_stop_nothing(world: AttachWorld, served: Served) -> None:
    spec: dict[str, Any] = {"nodeName": "n1", "source": {"persistentVolumeName": "v"}}
    await world.kube.create(ATTACHMENTS, {"metadata": {"name": "other"}, "spec": {"attacher": "o.example.com", **spec}})
    inline = {"csi": {"driver": NETWORK_DRIVER, "volumeHandle": "x"}, "accessModes": ["ReadWriteOnce"]}
    migrated = {"attacher": NETWORK_DRIVER, "nodeName": "n1", "source": {"inlineVolumeSpec": inline}}
    await world.kube.create(ATTACHMENTS, {"metadata": {"name": "migrated"}, "spec": migrated})
    lost = {"attacher": NETWORK_DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "lost"}}
    await world.kube.create(ATTACHMENTS, {"metadata": {"name": "lost"}, "spec": lost})
    await world.kube.create(ATTACHMENTS, {"metadata": {"name": "gone", "finalizers": [FINALIZER]}, "spec": lost})
    await world.kube.delete(ATTACHMENTS, "gone")
    await world.node("n1")
    await world.volume("v")
    await world.attached(await world.attach("n1"))
    assert (await world.failed("migrated")).startswith("the attachment names no PersistentVolume")
    assert await world.failed("lost") == 'PersistentVolume "lost" does not exist'
    assert await world.failed("gone", "detachError") == (
        'PersistentVolume "lost" does not exist; detach the volume at the storage, then remove the attachment\'s'
        " finalizer"
    )
    other = await world.get("other")
    assert other is not None
    assert not other.attached


async def test_a_driver_that_attaches_nothing_is_not_asked(world: AttachWorld, writes: Recording) -> None:
    world.storage.capabilities = ("CREATE_DELETE_VOLUME",)
    async with serving(Client(writes), world.storage, RealClock()):
        name = await world.attach("n1")
        await world.attached(name)
        await world.detach(name)
        await world.gone(name)
    assert writes.writes == [f"PATCH volumeattachments/{name}/status"]


async def test_a_volume_that_was_detached_at_the_storage_is_attached_again(world: AttachWorld, served: Served) -> None:
    await world.node("n1")
    await world.volume("v")
    await world.volume("w")
    name = await world.attach("n1")
    await world.attached(name)
    await world.attached(await world.attach("n1", "w"))
    (driver,) = served.drivers
    await served.comparison.compare(driver)
    await asyncio.sleep(0)
    assert len(world.storage.calls) == 2, "nothing to do"
    world.storage.volumes["h-v"].nodes.clear()
    await eventually(lambda: _cached(served, 2))
    await served.comparison.compare(driver)

    async def again() -> bool:
        return bool(world.storage.volumes["h-v"].nodes)

    await eventually(again)
    assert world.storage.calls[2:] == ["publish h-v id-n1"]


async def _cached(served: Served, count: int) -> bool:
    return len(served.attacher.attached(NETWORK_DRIVER)) == count


async def test_a_stranger_that_is_attached_is_left_alone(world: AttachWorld, served: Served) -> None:
    await world.node("n1")
    await world.volume("v")
    await world.volume("w")
    world.storage.volumes["h-w"].nodes["another-cluster"] = False
    await world.attached(await world.attach("n1"))
    await eventually(lambda: _cached(served, 1))
    (driver,) = served.drivers
    await served.comparison.compare(driver)
    assert world.storage.volumes["h-w"].nodes == {"another-cluster": False}
