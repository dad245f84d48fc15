"""Creation of volumes and PVs: also by an agent that was killed in between, and what is counted.

The next agent finds the volume in a pool that is full.
"""

from __future__ import annotations

import pytest

from tonnage.base.errors import UnavailableError
from tonnage.base.observe import metrics
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedReference
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage.node.provisioner import create
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time


class _WithoutVolumes:
    """A transport on which no PV can be created."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self.stream, self.close = transport, transport.stream, transport.close

    async def request(self, request: Request) -> Response:
        if request.method == "POST" and request.path.endswith("/persistentvolumes"):
            raise UnavailableError("it was never sent")
        return await self._transport.request(request)


async def _made_and_killed(node: FakeNode, count: int, eventually: Eventually) -> None:
    """Run an agent until the pool has so many volumes, and kill it before their PVs exist."""
    kube, node.client = node.client, Client(_WithoutVolumes(node.client.transport))
    await node.start_agent()
    node.client = kube

    async def made() -> bool:
        return len(await node.volumes()) == count

    await eventually(made)
    await node.kill_agent()


@pytest.mark.parametrize("sizes", [("5Gi",), ("3Gi", "2Gi")])
async def test_its_claims_are_bound_although_nothing_is_free(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, sizes: tuple[str, ...]
) -> None:
    node = await make_node("5Gi", agent=False)
    await scratch_pod("app", *sizes)
    claims = [f"app-v{number}" for number in range(len(sizes))]
    await node.select(*claims)
    await _made_and_killed(node, len(sizes), eventually)
    before = sorted(await node.volumes())

    await node.start_agent()

    for claim in claims:
        await eventually(lambda claim=claim: node.is_bound(claim))
        assert names.RESCHEDULES not in (await node.claim(claim)).metadata.annotations
    assert sorted(await node.volumes()) == before
    assert await node.capacity() == ("0", "0")


async def test_another_claim_gets_what_is_left(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    """The volume of one exists; that of the other fits exactly."""
    node = await make_node("5Gi", agent=False)
    await scratch_pod("first", "3Gi")
    await node.select("first-v0")
    await _made_and_killed(node, 1, eventually)
    await scratch_pod("second", "2Gi")
    await node.select("second-v0")

    await node.start_agent()

    await eventually(lambda: node.is_bound("first-v0"))
    await eventually(lambda: node.is_bound("second-v0"))


async def test_a_claim_without_a_volume_is_rescheduled_as_before(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("5Gi", agent=False)
    await scratch_pod("first", "5Gi")
    await node.select("first-v0")
    await _made_and_killed(node, 1, eventually)
    await scratch_pod("second", "5Gi")
    await node.select("second-v0")

    await node.start_agent()

    await eventually(lambda: node.is_bound("first-v0"))

    async def rescheduled() -> bool:
        notes = (await node.client.get(kinds.CLAIMS, "second-v0", "default")).metadata.annotations
        return names.SELECTED_NODE not in notes and notes.get(names.RESCHEDULES) == "1"

    await eventually(rescheduled)


def _value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_claims_are_counted_by_class_and_source() -> None:
    source = TypedReference(kind="VolumeSnapshot", name="s")
    claim = PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(storage_class_name="o-c", data_source=source))
    plain = PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(storage_class_name="o-c"))
    create.count_failure(claim)
    create.count_success(claim, 0.3)
    create.count_success(plain, 0.1)

    name, labels = "controller_persistentvolumeclaim_provision", {"class": "o-c", "source": "VolumeSnapshot"}
    assert _value(f"{name}_total", **labels) == 1
    assert _value(f"{name}_failed_total", **labels) == 1
    assert _value(f"{name}_duration_seconds_sum", **labels) == 0.3
    assert _value(f"{name}_total", **{**labels, "source": ""}) == 1
    assert _value(f"{name}_failed_total", **{**labels, "source": ""}) == 0
