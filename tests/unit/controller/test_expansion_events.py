"""A claim that asks to grow is told, once for each size, that nothing grows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.json import encode
from tests.unit.conftest import Running, Settle, Told
from tests.unit.controller.contexts import context

from tonnage.api import names
from tonnage.api.kinds import CLAIMS, VOLUMES
from tonnage.controller.expansion_events import REASON, ExpansionEvents, Growth, growth_of
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
GI = 1024**3


@pytest.mark.parametrize(
    ("asked", "capacity", "phase", "growth"),
    [
        ("2Gi", {"storage": "1Gi"}, "Bound", Growth(GI, 2 * GI)),
        ("1025Mi", {"storage": "1Gi"}, "Bound", Growth(GI, 1025 * 1024**2)),
        ("1Gi", {"storage": "1Gi"}, "Bound", None),
        ("1Gi", {"storage": "2Gi"}, "Bound", None),
        ("2Gi", {"storage": "1Gi"}, "Lost", None),
        ("2Gi", {}, "Bound", None),
        ("2Gi", {"storage": "much"}, "Bound", None),
    ],
)
def test_which_claims_ask_to_grow(asked: str, capacity: dict[str, str], phase: str, growth: Growth | None) -> None:
    spec = {"volumeName": "v", "resources": {"requests": {"storage": asked}}}
    meta = {"annotations": {names.BIND_COMPLETED: "yes"}}
    claim = CLAIMS.decode(encode({"metadata": meta, "spec": spec, "status": {"phase": phase, "capacity": capacity}}))
    assert growth_of(claim) == growth


async def test_it_is_said_once_for_each_size_and_driver_of_ours(
    kube: Client, informers: Informers, events: EventRecorder, make_claim: Make, make_volume: Make, running: Running,
    settle: Settle, told: Told, eventually: Eventually,
) -> None:  # fmt: skip
    async def grow(name: str, size: str, **volume: Any) -> None:
        marks = {"annotations": {names.BIND_COMPLETED: "yes"}}
        await kube.patch(CLAIMS, name, {"metadata": marks, "spec": {"volumeName": f"v-{name}"}}, "default")
        status = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
        await kube.patch(CLAIMS, name, {"status": status}, "default", subresource="status")
        ref = {"namespace": "default", "name": name}
        await make_volume(f"v-{name}", claimRef=ref, **volume)

    async def said(count: int) -> Any:
        await settle()
        found = await told()
        return found if len(found) == count else None

    async with running(ExpansionEvents(context(kube, informers, events))):
        for name in ("ours", "theirs", "content"):
            await make_claim(name, "1Gi" if name == "content" else "2Gi", storageClassName="c")
        await grow("ours", "2Gi")
        await grow("theirs", "2Gi", csi={"driver": "csi.example.com", "volumeHandle": "v"})
        await grow("content", "1Gi")
        ((about, type_, reason, text),) = await eventually(lambda: said(1))
        assert (about, type_, reason) == ("ours", "Warning", REASON)
        assert text == (
            "claim default/ours: not grown from 1Gi to 2Gi: tonnage does not expand volumes yet; make a claim of 2Gi"
            " with dataSource PersistentVolumeClaim ours, which begins as a copy of it, and use that one in the pod"
        )
        await kube.patch(CLAIMS, "ours", {"metadata": {"labels": {"a": "b"}}}, "default")
        await kube.patch(VOLUMES, "v-ours", {"metadata": {"labels": {"a": "b"}}})
        await settle()
    async with running(ExpansionEvents(context(kube, informers, events))):
        await settle()
        assert len(await told()) == 1, "nor by one that starts anew"
