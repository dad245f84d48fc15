"""Annotations, labels, volume attributes and class parameters that earlier commits wrote: each has its meaning still.

annotations.json has their names of then. They are never renamed there: what has another name today is still read by
its old one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.provisioner.contexts import context
from tests.upgrade.archive import COMMITS, read, unpack

from tonnage.base.aio.clock import parse_rfc3339
from tonnage.base.errors import UnavailableError
from tonnage.controller import node_loss
from tonnage.csi.driver.driver import CONTEXT_CREATED
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS, NODES, STORAGE_CLASSES, VOLUMES, Kind
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response
from tonnage.node import static_pvs
from tonnage.node.provisioner.claim_group import GroupFinder
from tonnage.node.provisioner.state import PodClaimGroup
from tonnage.provisioning.capacity import object as capacity_object
from tonnage.provisioning.capacity import tier
from tonnage.provisioning.capacity.node_template import without_nodes_since
from tonnage.provisioning.capacity.published import PublishedCapacity, PublishedStorage
from tonnage.provisioning.capacity.topology_index import NodeLabels
from tonnage.provisioning.claims import provisioning
from tonnage.provisioning.claims.bind import reschedules_of
from tonnage.provisioning.claims.node_scope import NodeScope
from tonnage.storage.pools.base.record import UNDELETE

ANNOTATIONS: dict[str, dict[str, dict[str, str]]] = {commit: read(commit, "annotations") for commit in COMMITS}


class Objects(dict[str, dict[str, Any]]):
    """The objects of a cluster: `kind name` -> the object as it was served. meanings: its names of then."""

    meanings: dict[str, dict[str, str]]


@pytest.fixture(params=COMMITS, scope="module")
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Objects:
    folder: Path = tmp_path_factory.mktemp("cluster")
    unpack(request.param, "objects", folder)
    paths: dict[str, list[dict[str, Any]]] = json.loads((folder / "objects.json").read_text())
    kinds = {"persistentvolumeclaims": "PersistentVolumeClaim", "persistentvolumes": "PersistentVolume", "pods": "Pod",
             "csistoragecapacities": "CSIStorageCapacity", "storageclasses": "StorageClass", "nodes": "Node"}  # fmt: skip
    listed = [(kinds.get(path.rpartition("/")[2], ""), item) for path, items in paths.items() for item in items]
    made = Objects({f"{kind} {item['metadata']['name']}": item for kind, item in listed if kind})
    made.meanings = ANNOTATIONS[request.param]
    return made


def noted(objects: Objects, meaning: str) -> dict[str, str]:
    """Name of an object -> the text that it has under the name of then."""
    key, kind = objects.meanings[meaning]["key"], objects.meanings[meaning]["on"]
    found = {}
    for name, obj in objects.items():
        if not name.startswith(f"{kind} "):
            continue
        meta, attributes = obj["metadata"], obj.get("spec", {}).get("csi", {}).get("volumeAttributes", {})
        places: tuple[dict[str, str] | None, ...] = (
            meta.get("annotations"),
            meta.get("labels"),
            attributes,
            obj.get("parameters"),
        )
        for place in places:
            if place is not None and key in place:
                found[name.partition(" ")[2]] = place[key]
    return found


def test_some_object_has_each(objects: Objects) -> None:
    for meaning, entry in objects.meanings.items():
        assert noted(objects, meaning), entry
        assert entry["meaning"]


def test_none_is_left_out(objects: Objects) -> None:
    """Every key of ours on an object of then is in the table."""
    known = {entry["key"] for entry in objects.meanings.values()}
    text = json.dumps(list(objects.values()))
    found = {word.rstrip("\\") for word in text.split('"') if word.startswith("tonnage.dev/")}
    assert {word for word in found if word.count("/") == 1 and ":" not in word} <= known


class _Unreachable:
    """An API server that must not be asked."""

    async def request(self, request: Request) -> Response:
        raise UnavailableError(f"{request.method} {request.path}: not expected")

    def stream(self, request: Request) -> Any:
        raise UnavailableError(f"{request.path}: not expected")

    async def close(self) -> None:
        """Nothing to close."""


class _Claims(_Unreachable):
    """One that has the claims of then."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def request(self, request: Request) -> Response:
        name = request.path.rpartition("/")[2]
        return Response(200, json.dumps(self._objects[f"PersistentVolumeClaim {name}"]).encode())


async def group_of(claim: PersistentVolumeClaim, transport: _Unreachable) -> PodClaimGroup:
    return await GroupFinder(context(client=Client(transport))).of(claim)


def obj(kind: Kind[Any], objects: Objects, name: str) -> Any:
    return kind.decode(json.dumps(objects[f"{kind.kind} {name}"]).encode())


async def test_claims(objects: Objects) -> None:
    together = noted(objects, "claim group")
    assert together == {"large-a": "large-b", "large-b": "large-a"}
    for name in together:
        group = await group_of(obj(CLAIMS, objects, name), _Claims(objects))
        assert group.claims == ("default/large-a", "default/large-b")
    alone = noted(objects, "single claim")
    for name in alone:  # no request is needed to know that
        group = await group_of(obj(CLAIMS, objects, name), _Unreachable())
        assert group.claims == (f"default/{name}",)
    other = next(name for name in objects if name.startswith("PersistentVolumeClaim two-ephemeral"))
    with pytest.raises(UnavailableError):
        await group_of(obj(CLAIMS, objects, other.partition(" ")[2]), _Unreachable())
    counts = noted(objects, "reschedules")
    assert counts == {"large-a": "3", "large-b": "1"}
    assert {name: reschedules_of(obj(CLAIMS, objects, name)) for name in counts} == {"large-a": 3, "large-b": 1}
    for name, node in noted(objects, "node of a claim").items():
        assert NodeScope(node, "uid").has_claim(obj(CLAIMS, objects, name).metadata)


CAPACITY: dict[str, Callable[[CSIStorageCapacity], object]] = {
    "observed claim version": lambda found: str(found.counted),
    "reason": capacity_object.reason,
    "inline capacity": lambda found: f"{(capacity_object.inline(found) or 0) >> 20}Mi",
    "exact capacity, bytes": lambda found: f"{tier.read_notice(found).exact_from >> 40}Ti",
    "exact capacity, nodes": lambda found: ",".join(sorted(tier.read_notice(found).exact_on)),
    "tier": lambda found: found.metadata.labels[names.TIER] if tier.is_tier(found) else "",
}


@pytest.mark.parametrize("meaning", CAPACITY)
def test_capacity_objects(objects: Objects, meaning: str) -> None:
    expected = noted(objects, meaning)
    assert {name: CAPACITY[meaning](obj(CAPACITIES, objects, name)) for name in expected} == expected


def test_a_group_without_nodes(objects: Objects) -> None:
    for name, since in noted(objects, "without nodes since").items():
        assert without_nodes_since(obj(CAPACITIES, objects, name)) == parse_rfc3339(since)


def test_capacity_as_the_scheduler_reads_it(objects: Objects) -> None:
    offers: dict[str, PublishedCapacity] = {}

    def see(offer: PublishedCapacity) -> None:
        offers[offer.key.partition("/")[2]] = offer

    published = PublishedStorage(NodeLabels(), see, see)
    for name in (name.partition(" ")[2] for name in objects if name.startswith("CSIStorageCapacity ")):
        published.put(obj(CAPACITIES, objects, name))
    assert {name: str(offer.counted) for name, offer in offers.items() if offer.counted is not None} == noted(
        objects, "observed claim version"
    )
    assert {name: offer.reason for name, offer in offers.items() if offer.reason} == noted(objects, "reason")
    inline = {name: f"{offer.inline >> 20}Mi" for name, offer in offers.items() if offer.inline is not None}
    assert inline == noted(objects, "inline capacity")
    tiers = {name for name, value in noted(objects, "tier").items() if value != names.TIER_NOTICE}
    assert {name for name, offer in offers.items() if offer.tier} == tiers
    assert {name for name, offer in offers.items() if offer.is_default} == set(noted(objects, "default pool"))
    pools = {name: pool for name, pool in noted(objects, "pool").items() if name in offers}
    assert {name: offer.pool for name, offer in offers.items() if offer.pool} == pools


def test_volumes_nodes_and_classes(objects: Objects) -> None:
    for name, since in noted(objects, "node gone since").items():
        assert node_loss._since(obj(VOLUMES, objects, name)) == parse_rfc3339(since)
    disks = noted(objects, "disk")
    volumes = [
        obj(VOLUMES, objects, name.partition(" ")[2]) for name in objects if name.startswith("PersistentVolume ")
    ]
    assert {volume.metadata.name for volume in volumes if static_pvs._is_ahead(volume)} == set(disks)
    for name, node in noted(objects, "node").items():
        assert NodeScope(node, "uid").has_volume(obj(VOLUMES, objects, name).metadata)
    sizes = noted(objects, "tier of a node")
    found = {name: tier.of_node(obj(NODES, objects, name).metadata.labels, "lost") for name in sizes}
    assert {name: tier.as_label(size) for name, size in found.items()} == sizes
    for name in noted(objects, "on node gone"):
        assert provisioning.release_after(obj(STORAGE_CLASSES, objects, name).parameters) == 3600


UNCHANGED = {
    "rollback": names.ROLLBACK,
    "evict unfit": names.EVICT_UNFIT,
    "cluster": names.PARAM_CLUSTER,
    "created": CONTEXT_CREATED,
    "ephemeral": names.PARAM_EPHEMERAL,
    "reclaim": names.PARAM_RECLAIM,
    "node of a claim": names.NODE_LABEL,
    "autogrow at": names.AUTOGROW_AT,
    "autogrow by": names.AUTOGROW_BY,
    "autogrow max": names.AUTOGROW_MAX,
    "undelete": UNDELETE,
}


@pytest.mark.parametrize("commit", COMMITS)
def test_names_that_people_write_or_volumes_keep(commit: str) -> None:
    """Selectors, classes, pods and records in pools have them: another name needs a reader of both."""
    then = {meaning: ANNOTATIONS[commit][meaning]["key"] for meaning in UNCHANGED if meaning in ANNOTATIONS[commit]}
    assert len(then) >= 7
    assert then == {meaning: UNCHANGED[meaning] for meaning in then}
