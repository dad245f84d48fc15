"""Claims with a Content: filled by the driver while it makes the volume, told by Events, rejected by name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import InvalidError
from tonnage.csi.driver import filling
from tonnage.csi.driver.filling import Filling
from tonnage.kubernetes.api import kinds
from tonnage.storage.content.access import Progress, StoppedError
from tonnage.storage.pools.base.parameters import SOURCE
from tonnage.storage.pools.base.record import CONTENT
from tonnage.storage.pools.fake.backend import FEATURES, FakePool
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
DATA_SOURCE = {"dataSourceRef": {"apiGroup": "tonnage.dev", "kind": "Content", "name": "c"}}
GI = 1 << 30


@dataclass
class Fills:
    """The filling of volumes, without any: it ends when it may."""

    may_end: threading.Event = field(default_factory=threading.Event)
    fails: str = ""
    begun: int = 0

    def fill(self, filling: Filling, place: Path, progress: Progress) -> None:
        self.begun += 1
        progress.done, progress.total = 12 * GI, 40 * GI
        while not self.may_end.wait(0.005):
            if progress.stop.is_set():
                raise StoppedError("stopped")
        if self.fails:
            raise InvalidError(self.fails)


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fills]:
    made = Fills()
    monkeypatch.setattr(filling, "_fill", made.fill)
    yield made
    made.may_end.set()


@pytest.fixture
async def node(make_node: MakeNode, tmp_path: Path) -> FakeNode:
    """A node whose pool takes contents, and that allows the folder models."""
    features = replace(FEATURES, parameters=FEATURES.parameters | {SOURCE})
    (tmp_path / "models").mkdir()
    return await make_node(pool=FakePool("scratch", 10 * GI, features=features), sources=(tmp_path / "models",))


async def content(node: FakeNode, **spec: Any) -> None:
    spec = spec or {"folder": {"name": "models"}}
    await node.client.create(kinds.CONTENTS, {"metadata": {"name": "c"}, "spec": spec}, "default")


async def version(node: FakeNode) -> int:
    return int((await node.client.list(kinds.CLAIMS, "default")).resource_version)


async def test_it_is_bound_once_it_is_filled_with_no_more_writes(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually, fills: Fills, all_events: AllEvents
) -> None:
    fills.may_end.set()
    await content(node)
    await asyncio.sleep(5)  # the agent's mark is in the Node
    writes = []
    for name, more in (("plain", {}), ("filled", DATA_SOURCE)):
        await make_claim(name, "2Gi", storageClassName="late", **more)
        before = await version(node)
        await node.select(name)
        await eventually(lambda name=name: node.is_bound(name))
        await asyncio.sleep(5)
        writes.append(await version(node) - before)
    events = len([1 for claim, why, _ in await all_events() if claim == "filled" and why == "Populating"])
    told_late = len([1 for claim, why, _ in await all_events() if claim == "filled" and why == "Provisioning"])
    assert writes[1] - events - told_late == writes[0]
    volume = await node.pool.get((await node.claim("filled")).spec.volume_name)
    assert volume.owner[CONTENT].startswith("filled:")
    assert fills.begun == 1


async def test_progress_is_told_now_and_then(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually, fills: Fills, all_events: AllEvents
) -> None:
    await content(node)
    await make_claim("data", "2Gi", storageClassName="late", **DATA_SOURCE)
    await node.select("data")
    await asyncio.sleep(100)
    found = [e for e in (await node.client.list(kinds.EVENTS)).items if e.reason == "Populating"]
    assert {event.message for event in found} == {"12 of 40 GiB from folder models"}
    assert 2 <= sum(max(event.count, 1) for event in found) <= 4
    assert (await node.client.list(kinds.VOLUMES)).items == []
    assert "ProvisioningFailed" not in {why for _, why, _ in await all_events()}
    fills.may_end.set()
    await eventually(lambda: node.is_bound("data"))
    assert fills.begun == 1


async def test_a_content_is_awaited(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually, fills: Fills, all_events: AllEvents
) -> None:
    fills.may_end.set()
    await make_claim("data", "2Gi", storageClassName="late", **DATA_SOURCE)
    await node.select("data")

    async def told() -> list[str]:
        return [text for _, why, text in await all_events() if why == "ProvisioningFailed"]

    (text,) = await eventually(told)
    assert text.endswith("Content default/c does not exist: make it")
    assert await node.volumes() == []
    await content(node)
    await eventually(lambda: node.is_bound("data"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"folder": {"name": "other"}}, "folder other: this node allows models"),
        ({"url": {"url": "http://169.254.169.254/x", "sha256": "0" * 64}}, "not among those that this node may fetch from"),
        ({"image": {"reference": "app:1"}}, "this node has no image store"),
    ],
)  # fmt: skip
async def test_what_the_node_does_not_allow_is_rejected(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents, spec: dict[str, Any], words: str
) -> None:  # fmt: skip
    await content(node, **spec)
    await make_claim("data", "2Gi", storageClassName="late", **DATA_SOURCE)
    await node.select("data")

    async def told() -> list[str]:
        return [text for _, why, text in await all_events() if why == "ProvisioningFailed"]

    (text,) = await eventually(told)
    assert words in text
    assert "infeasible" in text
    assert (await node.volumes(), await node.phase("data")) == ([], "Pending")


async def test_a_content_that_proves_wrong_is_told_and_tried_again_slowly(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually, fills: Fills, all_events: AllEvents
) -> None:
    fills.fails = "https://h/x: its sha256 is a, want b: nothing of it stays"
    fills.may_end.set()
    await content(node)
    await make_claim("data", "2Gi", storageClassName="late", **DATA_SOURCE)
    await node.select("data")

    async def told() -> list[str]:
        return [text for _, why, text in await all_events() if why == "ProvisioningFailed"]

    (text,) = await eventually(told)
    assert "its sha256 is a, want b" in text
    await asyncio.sleep(30)
    assert (fills.begun, await node.volumes()) == (1, [])


async def test_a_claim_that_goes_takes_its_volume_along(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually, fills: Fills
) -> None:
    await content(node)
    await make_claim("data", "2Gi", storageClassName="late", **DATA_SOURCE)
    await node.select("data")
    await eventually(node.volumes)
    await node.remove_claim("data")

    async def is_empty() -> bool:
        return await node.volumes() == []

    await eventually(is_empty)
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await asyncio.sleep(60)
    assert (await node.volumes(), node.pool.fake.staged) == ([], {})


async def test_an_agent_that_was_killed_goes_on(
    node: FakeNode, make_claim: MakeClaim, eventually: Eventually, fills: Fills
) -> None:
    await content(node)
    await make_claim("data", "2Gi", storageClassName="late", **DATA_SOURCE)
    await node.select("data")
    await eventually(node.volumes)
    await node.kill_agent()
    await node.start_agent()
    await asyncio.sleep(20)
    assert not await node.is_bound("data")
    fills.may_end.set()
    await eventually(lambda: node.is_bound("data"))
    assert (fills.begun, len(await node.volumes())) == (1, 1)


async def test_a_content_of_another_namespace_is_not_used(
    node: FakeNode, make_claim: MakeClaim, all_events: AllEvents, eventually: Eventually, fills: Fills
) -> None:
    """The API server drops the field without that feature; where one keeps it, the claim is rejected."""
    fills.may_end.set()
    await content(node)
    reference = {"dataSourceRef": {**DATA_SOURCE["dataSourceRef"], "namespace": "other"}}
    await make_claim("data", "2Gi", storageClassName="late", **reference)
    await node.select("data")
    claim = await node.claim("data")
    assert claim.spec.data_source_ref is not None
    if claim.spec.data_source_ref.namespace == "":
        await eventually(lambda: node.is_bound("data"))
    else:
        await asyncio.sleep(10)
        assert await node.volumes() == []
