"""The data source of a claim, read from a real API server; the agent's side is among the provisioner's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tonnage.api import kinds, names
from tonnage.claims.data_source import POPULATED, Away, content_of, leave_to_populator
from tonnage.claims.node_scope import DriverInfo
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import ContentSource
from tonnage.errors import InvalidError, PreconditionError
from tonnage.kube.client import Client
from tonnage.testing.objects import MakeClaim

SOURCE = {"dataSource": {"kind": "PersistentVolumeClaim", "name": "first"}, "storageClassName": "late"}


def _driver(node: str = "node-1", name: str = "d") -> DriverInfo:
    nothing = frozenset[str]()
    return DriverInfo(CsiClient(Path("/nowhere")), name, "", nothing, nothing, {names.TOPOLOGY_NODE: node}, "id")


async def _bound_source(kube: Client, make_claim: MakeClaim) -> None:
    """The claim "first" of 2Gi, bound to a volume of driver d on node-1."""
    claim = await make_claim("first", "2Gi", storageClassName="late")
    term = {"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": ["node-1"]}]}
    spec = {
        "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "csi": {"driver": "d", "volumeHandle": "scratch/first"},
        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "first",
                     "uid": claim.metadata.uid},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }  # fmt: skip
    await kube.create(kinds.VOLUMES, {"metadata": {"name": "pv-first"}, "spec": spec})
    notes = {names.BIND_COMPLETED: "yes", names.BOUND_BY_CONTROLLER: "yes"}
    body = {"metadata": {"annotations": notes}, "spec": {"volumeName": "pv-first"}}
    await kube.patch(kinds.CLAIMS, "first", body, "default")
    await kube.patch(kinds.CLAIMS, "first", {"status": {"phase": "Bound"}}, "default", subresource="status")


async def test_an_empty_volume_has_none(kube: Client, make_claim: MakeClaim) -> None:
    assert await content_of(kube, await make_claim("empty", "1Gi"), _driver()) is None


async def test_a_copy_is_made_on_the_node_of_its_source(kube: Client, make_claim: MakeClaim) -> None:
    await _bound_source(kube, make_claim)
    copy = await make_claim("copy", "2Gi", **SOURCE)
    assert await content_of(kube, copy, _driver()) == ContentSource(volume_id="scratch/first")
    away = await content_of(kube, copy, _driver("node-2"))
    assert away == Away("claim copy clones claim first, whose volume pv-first is on another node")


@pytest.mark.parametrize(
    ("size", "driver", "why"),
    [("1Gi", "d", "requested size 1Gi is smaller"), ("2Gi", "other", "pv-first is not of driver other")],
)
async def test_a_copy_that_can_never_be(kube: Client, make_claim: MakeClaim, size: str, driver: str, why: str) -> None:
    await _bound_source(kube, make_claim)
    with pytest.raises(InvalidError, match=why):
        await content_of(kube, await make_claim("copy", size, **SOURCE), _driver(name=driver))


async def test_a_source_that_is_not_ready(kube: Client, make_claim: MakeClaim) -> None:
    copy = await make_claim("copy", "2Gi", **SOURCE)
    with pytest.raises(PreconditionError, match="claim first is not there"):
        await content_of(kube, copy, _driver())
    await make_claim("first", "2Gi", storageClassName="late")
    with pytest.raises(PreconditionError, match="claim first is not bound yet"):
        await content_of(kube, copy, _driver())


class _Recorder:
    """Remembers Events, and what makes each unique."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []

    def record(self, about: Any, kind: str, reason: str, message: str, *, once: str) -> None:
        """One Event."""
        self.found.append((about.name, message, once))


async def test_a_populators_claim_has_one_event(make_claim: MakeClaim) -> None:
    events, claim = _Recorder(), await make_claim("copy", "2Gi")
    leave_to_populator(events, claim)  # type: ignore[arg-type]
    leave_to_populator(events, claim)  # type: ignore[arg-type]
    assert len(set(events.found)) == 1
    assert events.found[0][:2] == ("copy", POPULATED)
