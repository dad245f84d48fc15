"""Claims whose class has a provisioner of FlexVolumes: their volumes, PersistentVolumes and ends, and killed agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.node.agents import AllEvents
from tests.unit.node.guillotine import GIB, Guillotine, Mortal, Stage, staged

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.matching import driver_volume
from tonnage_box.testing.clock import run_virtual
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass, Objects
from tonnage_box.testing.wait import Eventually
from tonnage_box.testing.wait import eventually as until

PROVISIONER = "tonnage.dev/flex-provisioner"
virtual_time = pytest.mark.virtual_time


async def _volume(node: FakeNode, claim: str) -> PersistentVolume:
    return await node.client.get(kinds.VOLUMES, (await node.claim(claim)).spec.volume_name)


async def _is_bound(node: FakeNode, claim: str) -> bool:
    """Whether the claim is bound. If the agent has rescheduled it, it is set to the node again, as by a scheduler."""
    if names.SELECTED_NODE not in (await node.claim(claim)).metadata.annotations:
        await node.select(claim, provisioner=PROVISIONER)
    return await node.is_bound(claim)


async def _unprotect(node: FakeNode) -> None:
    """Remove the finalizers of PersistentVolumes that only Kubernetes protects, as its controller does."""
    for volume in (await node.client.list(kinds.VOLUMES)).items:
        if volume.metadata.deleting and names.PROVISIONER_FINALIZER not in volume.metadata.finalizers:
            await node.client.patch(kinds.VOLUMES, volume.metadata.name, {"metadata": {"finalizers": None}})


def _is_gone(node: FakeNode, volume: PersistentVolume) -> Callable[[], Any]:
    """Whether neither the volume nor its PersistentVolume is there."""

    async def ask() -> bool:
        name = volume.metadata.name
        await _unprotect(node)
        return await node.is_gone(kinds.VOLUMES, name) and name not in await node.volumes()

    return ask


@virtual_time
@pytest.mark.parametrize("provisioner", names.FLEX_PROVISIONERS)
async def test_a_claim_gets_a_volume_of_its_class_and_both_end_with_it(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually, provisioner: str
) -> None:
    await make_class("flex", provisioner=provisioner)
    node = await make_node("10Gi", flexvolume=True)
    await eventually(lambda: node.publishes("10Gi", "10Gi", "flex"))
    await make_claim("data", "4Gi", storageClassName="flex")
    await node.select("data", provisioner=provisioner)
    await eventually(lambda: node.is_bound("data"))
    volume = await _volume(node, "data")
    assert volume.spec.csi is None
    assert driver_volume(volume) == (names.DRIVER, f"scratch/{volume.metadata.name}")
    assert await node.volumes() == [volume.metadata.name]
    await eventually(lambda: node.publishes("6Gi", "6Gi", "flex"))
    await eventually(lambda: node.publishes("6Gi", "6Gi", "late"))
    await node.release("data")
    await eventually(_is_gone(node, volume))
    await eventually(lambda: node.publishes("10Gi", "10Gi", "flex"))


@virtual_time
async def test_what_does_not_fit_is_rescheduled_with_an_event(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    await make_class("flex", provisioner=PROVISIONER)
    node = await make_node("10Gi", flexvolume=True)
    await eventually(lambda: node.publishes("10Gi", "10Gi", "flex"))
    await make_claim("data", "20Gi", storageClassName="flex")
    await node.select("data", provisioner=PROVISIONER)

    async def is_rescheduled() -> bool:
        notes = (await node.claim("data")).metadata.annotations
        return names.SELECTED_NODE not in notes and notes.get(names.RESCHEDULES) == "1"

    await eventually(is_rescheduled)

    async def told() -> list[str]:
        return [text for about, reason, text in await all_events() if (about, reason) == ("data", "Rescheduled")]

    (text,) = await eventually(told)
    assert "insufficient storage on node node-1" in text
    assert await node.volumes() == []


@virtual_time
async def test_a_retained_volume_is_an_orphan_without_its_persistent_volume(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually
) -> None:
    await make_class("flex", provisioner=PROVISIONER, reclaimPolicy="Retain")
    node = await make_node("10Gi", flexvolume=True)
    await make_claim("data", "4Gi", storageClassName="flex")
    await node.select("data", provisioner=PROVISIONER)
    await eventually(lambda: node.is_bound("data"))
    volume = await node.release("data")
    driver = node.agents[-1].drivers.get(names.DRIVER)
    assert driver is not None
    await asyncio.sleep(70.0)
    found = await node.agents[-1].sweep.sweep(driver)
    assert (found.removed, found.orphans) == ([], []), "its PersistentVolume is there"
    await node.client.delete(kinds.VOLUMES, volume.metadata.name)
    await node.client.patch(kinds.VOLUMES, volume.metadata.name, {"metadata": {"finalizers": None}})
    found = await node.agents[-1].sweep.sweep(driver)
    assert [orphan.id for orphan in found.orphans] == [f"scratch/{volume.metadata.name}"]
    assert await node.volumes() == [volume.metadata.name]


@virtual_time
async def test_an_agent_without_flexvolume_leaves_such_claims_alone(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually
) -> None:
    await make_class("flex", provisioner=PROVISIONER)
    node = await make_node("10Gi")
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await make_claim("data", "4Gi", storageClassName="flex")
    await node.select("data", provisioner=PROVISIONER)
    await asyncio.sleep(100.0)
    assert await node.phase("data") == "Pending"
    assert (await node.volumes(), await node.capacity("flex")) == ([], (None, None))


@pytest.mark.slow
@virtual_time
async def test_an_agent_dies_at_every_step_of_a_claim(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim
) -> None:
    await make_class("flex", provisioner=PROVISIONER)
    guillotine = Guillotine()
    node = await make_node(pool=Mortal(guillotine, 10 * GIB), agent=False)
    stage = Stage(node.client, node, guillotine, options={"flexvolume": True})
    await stage.start()
    executioner = asyncio.ensure_future(stage.run())
    lives = 0
    try:
        for steps in range(1, 100):
            stage.kills, lives, name = 0, lives + 1, f"c{steps}"
            guillotine.revive(steps)
            await make_claim(name, "6Gi", storageClassName="flex")  # two would not fit
            await node.select(name, provisioner=PROVISIONER)
            await until(partial(_is_bound, node, name), limit=3600)
            volume = await _volume(node, name)
            assert await node.volumes() == [volume.metadata.name]
            await node.release(name)
            await until(_is_gone(node, volume), limit=3600)
            if not stage.kills:
                break
        else:
            pytest.fail("a life never ends")
    finally:
        executioner.cancel()
    assert lives > 10


@dataclass
class FlexPlay:
    """Plays operations on claims of two classes, one of FlexVolumes; knows which volumes are to be there in the end."""

    stage: Stage
    objects: Objects
    claims: dict[str, str] = field(default_factory=dict)
    """Name -> class."""
    released: set[str] = field(default_factory=set)
    """PersistentVolumes of claims that are gone."""
    number: int = 0

    async def apply(self, what: str, argument: int) -> None:
        """Do one operation. argument: which claim or class, steps or seconds."""
        node = self.stage.node
        if what == "claim":
            self.number += 1
            name, provisioner = f"c{self.number}", (PROVISIONER, names.DRIVER)[argument % 2]
            self.claims[name] = ("flex", "late")[argument % 2]
            await self.objects.claim(name, "1Gi", storageClassName=self.claims[name])
            await node.select(name, provisioner=provisioner)
        elif what == "delete" and self.claims:
            await self._delete(list(self.claims)[argument % len(self.claims)])
        elif what == "kill":
            self.stage.guillotine.revive(argument % 8 + 1)
        elif what == "rest":
            await asyncio.sleep((1, 70, 400)[argument % 3])

    async def _delete(self, name: str) -> None:
        """Delete a claim, bound or not, as its controllers would."""
        del self.claims[name]
        node, client = self.stage.node, self.stage.node.client
        uid = (await node.claim(name)).metadata.uid
        await node.remove_claim(name)
        self.released.add(names.volume_name(uid))
        await _release(client, self.released)

    async def check(self) -> None:
        """After a long rest: each claim has its volume, of the right kind, and there is no other."""
        self.stage.guillotine.revive()
        node = self.stage.node
        for _ in range(10):
            await _release(node.client, self.released)
            await asyncio.sleep(400)
            await _unprotect(node)
        wanted = set()
        for name, storage_class in self.claims.items():
            await until(partial(node.is_bound, name), limit=3600)
            volume = await _volume(node, name)
            assert (volume.spec.flex_volume is not None) == (storage_class == "flex")
            wanted.add(volume.metadata.name)
        assert {v.metadata.name for v in (await node.client.list(kinds.VOLUMES)).items} == wanted
        assert set(await node.volumes()) == wanted


async def _release(client: Any, released: set[str]) -> None:
    """Do what the PV controller does to PersistentVolumes whose claim is gone."""
    for volume in (await client.list(kinds.VOLUMES)).items:
        if volume.metadata.name in released and volume.status.phase != "Released":
            body = {"status": {"phase": "Released"}}
            await client.patch(kinds.VOLUMES, volume.metadata.name, body, subresource="status")


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["claim", "claim", "delete", "kill", "rest"]), st.integers(0, 7)), max_size=14
)


@pytest.mark.slow
@examples(40)
@given(OPERATIONS)
def test_whatever_happens_to_claims_and_agents(operations: list[tuple[str, int]]) -> None:
    run_virtual(_played(operations))


async def _played(operations: list[tuple[str, int]]) -> None:
    async with staged(flexvolume=True) as (stage, objects):
        await objects.storage_class("flex", provisioner=PROVISIONER)
        play = FlexPlay(stage, objects)
        for operation in operations:
            await play.apply(*operation)
        await play.check()
