"""Growth of mounted volumes: the test plays the driver's resizer, the driver is a real one behind its socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.box.kubelet.machine import GIB, Eventually

from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api.core import PersistentVolumeClaim, PersistentVolumeClaimStatus
from tonnage.kubernetes.api.kinds import CLAIMS, EVENTS, VOLUMES
from tonnage.provisioning.claims.growth import awaits_node

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]
OTHER = {"type": "VolumeResizingOfOthers", "status": "True", "lastProbeTime": "2026-01-01T00:00:00Z"}
WAITS = {"type": "FileSystemResizePending", "status": "True"}


async def _ask(machine: Any, size: int, *, old_resizer: bool = False, real: bool = True) -> None:
    """The resizer's part: the driver and the PV have the size, and the claim's status says what is left to do."""
    if real:
        await machine.pool.growth.expand("a", size)
    text = str(size)
    await machine.client.patch(VOLUMES, "pv-a", {"spec": {"capacity": {"storage": text}}})
    status: dict[str, Any] = {"capacity": {"storage": str(GIB)}, "conditions": [OTHER, WAITS]}
    if not old_resizer:
        status["allocatedResources"] = {"storage": text}
        status["allocatedResourceStatuses"] = {"storage": "NodeResizePending"}
    await machine.client.patch(CLAIMS, "a", {"status": status}, "default", subresource="status")


async def _until(machine: Any, state: str, *, capacity: int = GIB) -> PersistentVolumeClaim:
    async with asyncio.timeout(60):
        while True:
            claim = await machine.client.get(CLAIMS, "a", "default")
            status = claim.status
            if (status.allocated_resource_statuses.get("storage", ""), status.capacity["storage"]) == (
                state,
                str(capacity),
            ):
                return claim  # type: ignore[no-any-return]
            await asyncio.sleep(0.01)


async def _grown(machine: Any, size: int) -> None:
    """The driver did the node's part, and the claim shows it."""
    claim = await _until(machine, "", capacity=size)
    assert claim.status.conditions == [{**OTHER, "lastTransitionTime": None}]
    assert not awaits_node(claim)
    (volume,) = await machine.pool.list()
    assert (volume.size, volume.pending) == (size, False)


def _before_each_call(
    machine: Any, monkeypatch: pytest.MonkeyPatch, act: Callable[[int], Awaitable[None]]
) -> list[tuple[Any, ...]]:
    """Act before each growth by the driver, with its number from 1; the calls so far."""
    mounts, calls = machine.kubelet.volumes.csi, list[tuple[Any, ...]]()
    real = mounts.expand

    async def expand(*arguments: Any) -> None:
        calls.append(arguments)
        await act(len(calls))
        await real(*arguments)

    monkeypatch.setattr(mounts, "expand", expand)
    return calls


@pytest.mark.parametrize("old_resizer", [False, True])
@pytest.mark.parametrize("block", [False, True])
async def test_a_mounted_volume_grows(machine: Any, block: bool, old_resizer: bool) -> None:
    await machine.volume("a", block=block)
    uses = {"volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]} if block else {}
    containers = [{"name": "main", "image": "busybox", "command": ["sleep", "1000"], **uses}]
    await machine.pod("p", volumes=CLAIM, containers=containers)
    await machine.phase("p", "Running")
    await _ask(machine, 2 * GIB, old_resizer=old_resizer)
    await _grown(machine, 2 * GIB)
    for about in ("p", "a"):
        event = await machine.event("FileSystemResizeSuccessful", about=about)
        assert event.message == 'MountVolume.NodeExpandVolume succeeded for volume "pv-a" node-1'


async def test_it_grows_when_it_is_mounted_later(machine: Any) -> None:
    await machine.volume("a")
    await _ask(machine, 2 * GIB)
    await asyncio.sleep(0.05)
    assert awaits_node(await machine.client.get(CLAIMS, "a", "default"))
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    await _grown(machine, 2 * GIB)


async def test_a_killed_kubelet_goes_on(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    begun = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> None:
        begun.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr(machine.kubelet.volumes.csi, "expand", hang)
    await _ask(machine, 2 * GIB)
    await begun.wait()
    await _until(machine, "NodeResizeInProgress")
    await machine.restart()
    await _grown(machine, 2 * GIB)


async def test_what_the_driver_cannot_do_is_left_to_the_resizer(machine: Any) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    await _ask(machine, 3 * GIB, real=False)
    claim = await _until(machine, "NodeResizeInfeasible")
    event = await machine.event("VolumeResizeFailed", about="p")
    prefix = 'NodeExpandVolume.NodeExpandVolume failed for volume "pv-a" : rpc error: code = OutOfRange desc = '
    assert event.message.startswith(prefix)
    error = claim.status.conditions[-1]
    assert (error["type"], error["status"]) == ("NodeResizeError", "True")
    assert "code = OutOfRange" in error["message"]

    await _ask(machine, 2 * GIB)  # the resizer tries a smaller size
    await _grown(machine, 2 * GIB)


async def test_a_failure_that_may_pass_is_tried_again(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")

    async def fail_once(call: int) -> None:
        if call == 1:
            raise CsiError(Code.INTERNAL, "not now")

    calls = _before_each_call(machine, monkeypatch, fail_once)
    await _ask(machine, 2 * GIB)
    await _grown(machine, 2 * GIB)
    assert len(calls) == 2


async def test_others_may_write_the_claim_meanwhile(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")

    async def write_twice(call: int) -> None:
        if call < 3:
            await machine.client.patch(CLAIMS, "a", {"metadata": {"labels": {"n": str(call)}}}, "default")

    calls = _before_each_call(machine, monkeypatch, write_twice)
    await _ask(machine, 2 * GIB)
    await _grown(machine, 2 * GIB)
    await machine.event("FileSystemResizeSuccessful")
    assert len(calls) == 3
    assert "VolumeResizeFailed" not in [event.reason for event in (await machine.client.list(EVENTS)).items]


async def test_a_driver_that_cannot_grow_it_in_use_keeps_no_pod(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await machine.volume("a")
    await _ask(machine, 2 * GIB)

    async def expand(*_: Any) -> None:
        raise CsiError(Code.FAILED_PRECONDITION, "in use")

    monkeypatch.setattr(machine.kubelet.volumes.csi, "expand", expand)
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    claim = await _until(machine, "NodeResizeInProgress")
    assert "in use" in claim.status.conditions[-1]["message"]


async def test_a_volume_that_cannot_grow_is_not_mounted(machine: Any) -> None:
    await machine.volume("a")
    await _ask(machine, 3 * GIB, real=False)
    await machine.pod("p", volumes=CLAIM)
    event = await machine.event("FailedMount", about="p")
    assert event.message.startswith('MountVolume.Setup failed while expanding volume for volume "pv-a" : rpc error')
    await machine.phase("p", "Running")  # as it is: what is infeasible is not tried again
    await _until(machine, "NodeResizeInfeasible")


async def test_what_is_read_only_does_not_grow(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await _ask(machine, 2 * GIB)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "a", "readOnly": True}}
    await machine.pod("p", volumes=[volume])
    await machine.phase("p", "Running")
    event = await machine.event("FileSystemResizeFailed", about="a")
    assert event.message.endswith("requested read-only file system")
    assert awaits_node(await machine.client.get(CLAIMS, "a", "default"))


async def test_a_pod_that_only_reads_keeps_no_other_from_growing(machine: Any) -> None:
    await machine.volume("a")
    reads = {"name": "data", "persistentVolumeClaim": {"claimName": "a", "readOnly": True}}
    for name, volumes in (("reader", [reads]), ("writer", CLAIM), ("second-reader", [reads])):
        await machine.pod(name, volumes=volumes)
        await machine.phase(name, "Running")
    await _ask(machine, 2 * GIB)
    await _grown(machine, 2 * GIB)
    await machine.event("FileSystemResizeSuccessful", about="writer")


@pytest.mark.parametrize(
    ("status", "pending"),
    [
        ({}, False),
        ({"conditions": [WAITS]}, True),
        ({"conditions": [{"type": "Resizing", "status": "True"}]}, False),
        ({"conditions": [WAITS], "allocated_resources": {"storage": "1Gi"}}, False),
        ({"allocated_resource_statuses": {"storage": "NodeResizePending"}}, True),
        ({"allocated_resource_statuses": {"storage": "NodeResizeInfeasible"}}, False),
        ({"allocated_resource_statuses": {"storage": "ControllerResizeInProgress"}}, False),
    ],
)
def test_pending(status: dict[str, Any], pending: bool) -> None:
    assert awaits_node(PersistentVolumeClaim(status=PersistentVolumeClaimStatus(**status))) is pending
