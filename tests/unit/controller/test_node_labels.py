"""The label of a claim's node, where whoever sent the claim did not write it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running

from tonnage.base.errors import PreconditionError
from tonnage.controller.config import LoopKey
from tonnage.controller.node_labels import CLAIM, VOLUME, ClaimNodeLabels
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, NODES, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]
LONG = "a-name-that-is-longer-than-the-sixty-three-characters-of-a-label.example.com"
DRIVERS = {names.DRIVER: names.TOPOLOGY_NODE, "other.example.com": "other.example.com/place"}


def sent_to(node: str) -> dict[str, str]:
    return {names.SELECTED_NODE: node}


@pytest.fixture
async def scoping(kube: Client, informers: Informers, make_class: Make) -> ClaimNodeLabels:
    await make_class("late")
    await make_class("foreign", provisioner="foreign.example.com")
    return ClaimNodeLabels(context(kube, informers, drivers=DRIVERS))


async def label(kube: Client, name: str = "c") -> str | None:
    found = await kube.get(CLAIMS, name, "default")
    return found.metadata.labels.get(names.NODE_LABEL)


async def relabel(kube: Client, value: str | None, name: str = "c") -> None:
    await kube.patch(CLAIMS, name, {"metadata": {"labels": {names.NODE_LABEL: value}}}, "default")


@pytest.mark.parametrize(("node", "wanted"), [("n1", "n1"), (LONG, names.label_value(LONG))])
async def test_a_claim_that_was_sent_gets_the_label_of_its_node(
    kube: Client,
    scoping: ClaimNodeLabels,
    make_claim: Make,
    eventually: Eventually,
    running: Running,
    node: str,
    wanted: str,
) -> None:
    async def labelled() -> bool:
        return await label(kube) == wanted

    async def bare() -> bool:
        return await label(kube) is None

    async with running(scoping):
        await make_claim("c", storageClassName="late")
        await kube.patch(CLAIMS, "c", {"metadata": {"annotations": sent_to(node)}}, "default")
        await eventually(labelled)
        await kube.patch(CLAIMS, "c", {"metadata": {"annotations": {names.SELECTED_NODE: None}}}, "default")
        await eventually(bare)
        await relabel(kube, "n7")  # forged
        await eventually(bare)


async def test_older_claims_are_filled_in_bound_ones_too(
    kube: Client, scoping: ClaimNodeLabels, make_claim: Make, eventually: Eventually, running: Running
) -> None:
    for n in range(30):
        more = {"volumeName": f"v{n}"} if n % 2 else {}
        await make_claim(f"c{n}", storageClassName="late", annotations=sent_to(f"n{n}"), **more)

    async def all_labelled() -> bool:
        return all([await label(kube, f"c{n}") == f"n{n}" for n in range(30)])

    async with running(scoping):
        await eventually(all_labelled)


@pytest.mark.parametrize(
    ("storage_class", "annotations", "labelled"),
    [
        pytest.param("foreign", sent_to("n1"), None, id="of another driver"),
        pytest.param("unknown", sent_to("n1"), None, id="of an unknown class"),
        pytest.param(
            "unknown", sent_to("n1") | {names.STORAGE_PROVISIONER: names.DRIVER}, "n1", id="its class is gone"
        ),
        pytest.param("late", {}, None, id="not sent"),
        pytest.param("late", sent_to("n1"), "n1", id="ours"),
    ],
)
async def test_which_claims_are_labelled(
    kube: Client,
    scoping: ClaimNodeLabels,
    make_claim: Make,
    settle: Settle,
    storage_class: str,
    annotations: dict[str, str],
    labelled: str | None,
) -> None:
    await make_claim("c", storageClassName=storage_class, annotations=annotations)
    await settle()
    await scoping.reconcile(LoopKey(CLAIM, "default/c"))
    assert await label(kube) == labelled


async def test_nothing_is_written_where_somebody_else_labels(
    kube: Client, scoping: ClaimNodeLabels, make_claim: Make, settle: Settle, running: Running
) -> None:
    await make_claim("c", storageClassName="late")
    meta = {"annotations": sent_to("n1"), "labels": {names.NODE_LABEL: "n1"}}
    before = await kube.patch(CLAIMS, "c", {"metadata": meta}, "default")
    async with running(scoping):
        await settle()
        assert scoping._controller.queue.get() is None
    await scoping.reconcile(LoopKey(CLAIM, "default/c"))
    assert (await kube.get(CLAIMS, "c", "default")).metadata.resource_version == before.metadata.resource_version


async def test_a_class_that_comes_later(
    kube: Client,
    scoping: ClaimNodeLabels,
    make_claim: Make,
    make_class: Make,
    eventually: Eventually,
    settle: Settle,
    running: Running,
) -> None:
    await make_claim("c", storageClassName="later", annotations=sent_to("n1"))

    async def labelled() -> bool:
        return await label(kube) == "n1"

    async with running(scoping):
        await settle()
        assert not await labelled()
        await make_class("later")
        await eventually(labelled)


async def test_a_label_that_does_not_stay_is_not_written_for_ever(
    kube: Client, scoping: ClaimNodeLabels, make_claim: Make, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_claim("c", storageClassName="late", annotations=sent_to("n1"))
    await settle()

    async def taken_off(*_: Any, **__: Any) -> Any:
        return await kube.get(CLAIMS, "c", "default")

    monkeypatch.setattr(kube, "patch", taken_off)
    with pytest.raises(PreconditionError, match=r"claim default/c: somebody changes label tonnage\.dev/node"):
        await scoping.reconcile(LoopKey(CLAIM, "default/c"))


def at(*places: str, key: str = names.TOPOLOGY_NODE) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [place]}]} for place in places]
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("driver", "by", "spec", "labelled"),
    [
        pytest.param(names.DRIVER, names.DRIVER, at("n1"), "n1", id="ours"),
        pytest.param("other.example.com", "other.example.com", at("n2", key="other.example.com/place"), "n2", id="served"),
        pytest.param(names.DRIVER, "", at("n1"), None, id="made by a person"),
        pytest.param(names.DRIVER, names.DRIVER, at("n1", key=names.HOSTNAME_LABEL), "n1", id="by the name of its host"),
        pytest.param(names.DRIVER, names.DRIVER, at("n1", "n2"), None, id="two places"),
        pytest.param(names.DRIVER, names.DRIVER, {}, None, id="everywhere"),
        pytest.param("foreign.example.com", "foreign.example.com", at("n1"), None, id="another driver's"),
    ],
)  # fmt: skip
async def test_a_volume_that_lost_its_label_gets_it_back(
    kube: Client,
    scoping: ClaimNodeLabels,
    make_volume: Make,
    settle: Settle,
    driver: str,
    by: str,
    spec: dict[str, Any],
    labelled: str | None,
) -> None:
    csi = {"driver": driver, "volumeHandle": "h"}
    await make_volume("v", annotations={names.PROVISIONED_BY: by} if by else {}, csi=csi, **spec)
    await settle()
    await scoping.reconcile(LoopKey(VOLUME, "v"))
    assert (await kube.get(VOLUMES, "v")).metadata.labels.get(names.NODE_LABEL) == labelled


async def bound(kube: Client, make_claim: Make, make_volume: Make, spec: dict[str, Any], **more: Any) -> None:
    """A claim that a person bound to a PV that they made: no scheduler chose a node for it."""
    bind = {"annotations": {names.BIND_COMPLETED: "yes", **more.pop("annotations", {})}, "volumeName": "v"}
    claim = await make_claim("c", storageClassName="late", **bind, **more)
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": claim.metadata.uid}
    csi = {"driver": names.DRIVER, "volumeHandle": "h"}
    await make_volume("v", csi=csi, claimRef=ref, **spec)
    await kube.patch(VOLUMES, "v", {"status": {"phase": "Bound"}}, subresource="status")


@pytest.mark.parametrize(
    ("nodes", "spec", "annotations", "node"),
    [
        pytest.param(["n1", "n2"], at("n2"), {}, "n2", id="of our topology"),
        pytest.param(["n2"], at("n2", key=names.HOSTNAME_LABEL), {}, "n2", id="of a host"),
        pytest.param([LONG], at(names.label_value(LONG)), {}, LONG, id="of a long name"),
        pytest.param(["n1", "n2"], at("n2"), sent_to("n1"), "n1", id="a scheduler chose"),
        pytest.param(["n1", "n2"], at("n1", "n2"), {}, None, id="two places"),
        pytest.param(["n1"], {}, {}, None, id="everywhere"),
        pytest.param(["n1"], at("n2"), {}, None, id="no such node"),
    ],
)
async def test_a_claim_that_a_person_bound_is_its_volumes_nodes(
    kube: Client,
    scoping: ClaimNodeLabels,
    make_claim: Make,
    make_volume: Make,
    eventually: Eventually,
    running: Running,
    settle: Settle,
    nodes: list[str],
    spec: dict[str, Any],
    annotations: dict[str, str],
    node: str | None,
) -> None:
    for name in nodes:
        await kube.create(NODES, {"metadata": {"name": name}})
    await bound(kube, make_claim, make_volume, spec, annotations=annotations)

    async def right() -> bool:
        found = await kube.get(CLAIMS, "c", "default")
        wanted = names.label_value(node) if node else None
        return (found.metadata.labels.get(names.NODE_LABEL), found.metadata.annotations.get(names.SELECTED_NODE)) == (
            wanted,
            node,
        )

    async with running(scoping):
        await eventually(right)
        await settle()
        assert await right()
    if spec and node and not annotations:
        assert (await kube.get(VOLUMES, "v")).metadata.labels == {names.NODE_LABEL: names.label_value(node)}


async def test_its_node_may_come_later_and_its_volume_may_be_anothers(
    kube: Client, scoping: ClaimNodeLabels, make_claim: Make, make_volume: Make, eventually: Eventually,
    settle: Settle, running: Running,
) -> None:  # fmt: skip
    await bound(kube, make_claim, make_volume, at("n1"))
    bind = {"annotations": {names.BIND_COMPLETED: "yes"}, "volumeName": "v"}  # as its user says
    await make_claim("thief", storageClassName="late", **bind)

    async def labelled() -> bool:
        return await label(kube) == "n1"

    async with running(scoping):
        await settle()
        assert not await labelled()
        await kube.create(NODES, {"metadata": {"name": "n1"}})
        await eventually(labelled)
        await settle()
        assert await label(kube, "thief") is None
