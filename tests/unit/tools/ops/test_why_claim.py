"""What a claim waits for, said from the objects of the API server alone."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.tools.ops.why_claim import ClaimAnswer, why_claim
from tonnage_box.testing.objects import MakeClaim, MakePod

BOUND = {"phase": "Bound", "capacity": {"storage": "1Gi"}}


async def _claim(kube: Client, make_claim: MakeClaim, *, status: Any = None, **spec: Any) -> None:
    notes = {names.BIND_COMPLETED: "yes", names.SELECTED_NODE: "n1"} if status else {}
    await make_claim("data", annotations=notes, **({"volumeName": "v"} if status else {}), **spec)
    if status:
        await kube.patch(kinds.CLAIMS, "data", {"status": status}, "default", subresource="status")


async def _ask(kube: Client) -> ClaimAnswer:
    return await why_claim(kube, "data", "default")


@pytest.mark.parametrize(
    ("size", "status", "message"),
    [
        ("1Gi", BOUND, "it waits for nothing"),
        ("2Gi", BOUND, "it is to grow from 1Gi to 2Gi"),
        (
            "2Gi",
            BOUND | {"conditions": [{"type": "ControllerResizeError", "status": "True", "message": "no bytes"}]},
            "it waits to grow from 1Gi to 2Gi: no bytes",
        ),
        (
            "1Gi",
            BOUND
            | {
                "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "Infeasible"},
                "conditions": [{"type": "ModifyVolumeError", "status": "True", "message": "no such key"}],
            },
            "its change to VolumeAttributesClass gold is Infeasible: no such key",
        ),
        ("1Gi", {"phase": "Lost"}, "its PersistentVolume v does not exist"),
    ],
)
async def test_a_bound_claim(kube: Client, make_claim: MakeClaim, size: str, status: Any, message: str) -> None:
    await _claim(kube, make_claim, status=status, resources={"requests": {"storage": size}})
    found = await _ask(kube)
    assert found.message.startswith(message)
    assert (found.node, found.volume) == ("n1", "v")


async def test_a_claim_without_a_volume_names_the_pod_to_ask_about(
    kube: Client, make_claim: MakeClaim, make_pod: MakePod
) -> None:
    await _claim(kube, make_claim)
    assert (await _ask(kube)).message == "it has no volume: no pod uses it"
    await make_pod("web", claims=["data"])
    found = await _ask(kube)
    assert (found.message, found.todo, found.pods) == ("no node is selected for it yet", "tonnage why web", ["web"])
    await kube.delete(kinds.CLAIMS, "data", "default")
    assert (await _ask(kube)).message == "it is being deleted, and waits for pods web"


async def test_its_last_events_are_shown(kube: Client, make_claim: MakeClaim) -> None:
    await _claim(kube, make_claim)
    uid = (await kube.get(kinds.CLAIMS, "data", "default")).metadata.uid
    for number in range(10):
        body = {
            "metadata": {"name": f"e{number}"},
            "involvedObject": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": uid},
            "type": "Warning",
            "reason": f"R{number}",
            "message": "two\nlines",
            "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
        }
        await kube.create(kinds.EVENTS, body, "default")
    found = await _ask(kube)
    assert [said.reason for said in found.said] == [f"R{number}" for number in range(2, 10)]
    assert found.said[0].message == "two lines"
