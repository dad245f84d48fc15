"""Desired capacity objects: their body, and how an object differs from it."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES
from tonnage.kubernetes.api.meta import ObjectMeta, OwnerReference
from tonnage.kubernetes.api.storage import CSIStorageCapacity, StorageClass
from tonnage.provisioning.capacity.ledger import PoolCapacity
from tonnage.provisioning.capacity.object import DesiredCapacity
from tonnage.provisioning.claims.node_scope import CapacitySource, DriverInfo, NodeScope

OWNER = OwnerReference(api_version="v1", kind="Node", name="n1", uid="u")
SCOPE = NodeScope("n1", "cluster")
CLIENT = cast(Any, None)  # nothing here calls the driver


def wish(room: PoolCapacity, *, pool: str = "ssd", reason: str = "") -> DesiredCapacity:
    storage_class = StorageClass(metadata=ObjectMeta(name="fast"), provisioner="d", parameters={"pool": pool})
    info = DriverInfo(
        CLIENT, "d", "ssd", frozenset(), frozenset(), {names.TOPOLOGY_NODE: "n1"}, "", {"ssd": "image", "hdd": "image"}
    )
    return DesiredCapacity("name", CapacitySource("d", "fast", pool), info, storage_class, room, 7, 5, reason)


def published(wanted: DesiredCapacity, **changes: Any) -> CSIStorageCapacity:
    body = wanted.body(SCOPE, "space", OWNER)
    return CAPACITIES.decode(msgspec.json.encode({**body, **changes}))


def test_body() -> None:
    found = published(wish(PoolCapacity(2048, 1024, 512)))
    assert (found.metadata.name, found.metadata.namespace, found.storage_class_name) == ("name", "space", "fast")
    assert (found.capacity, found.maximum_volume_size, found.counted) == ("2Ki", "1Ki", 7)
    assert found.node_topology is not None
    assert found.node_topology.match_labels == {names.TOPOLOGY_NODE: "n1"}
    assert [owner.uid for owner in found.metadata.owner_references] == ["u"]
    labels, notes = found.metadata.labels, found.metadata.annotations
    assert (labels[names.POOL_LABEL], labels[names.DEFAULT_POOL], notes[names.INLINE_CAPACITY]) == (
        "ssd",
        "true",
        "512",
    )


@pytest.mark.parametrize(("pool", "reason", "label"), [("hdd", "", "hdd"), ("any text", "no such pool", None)])
def test_labels_of_the_pool(pool: str, reason: str, label: str | None) -> None:
    labels = wish(PoolCapacity(1, None), pool=pool, reason=reason).labels(SCOPE)
    assert labels.get(names.POOL_LABEL) == label
    assert names.DEFAULT_POOL not in labels


@pytest.mark.parametrize(
    ("wanted", "there", "lower", "higher"),
    [
        (PoolCapacity(10, None), PoolCapacity(10, None), False, False),
        (PoolCapacity(9, None), PoolCapacity(10, None), True, False),
        (PoolCapacity(11, None), PoolCapacity(10, None), False, True),
        (PoolCapacity(10, 5), PoolCapacity(10, None), True, False),
        (PoolCapacity(10, None), PoolCapacity(10, 5), False, True),
        (PoolCapacity(10, None), PoolCapacity(10, None, 3), True, False),
        (PoolCapacity(10, None, 3), PoolCapacity(10, None, 2), False, True),
        (PoolCapacity(9, None, 3), PoolCapacity(10, None), True, True),
    ],
)
def test_comparison(wanted: PoolCapacity, there: PoolCapacity, lower: bool, higher: bool) -> None:
    have = published(wish(there))
    assert wish(wanted).is_lower(have) is lower
    assert wish(wanted).is_higher(have) is higher


def test_patch_and_what_it_cannot_change() -> None:
    wanted = wish(PoolCapacity(2048, None))
    patch = wanted.patch(PoolCapacity(1024, None))
    assert (patch["capacity"], patch["maximumVolumeSize"]) == ("1Ki", None)
    notes = patch["metadata"]["annotations"]
    assert notes[names.INLINE_CAPACITY] is None
    for key in (names.INLINE_CAPACITY, names.OBSERVED_CLAIM_VERSION):
        assert notes[names.FORMER_KEYS[key]] is None  # else both keys would be there
    assert wanted.is_in_place(published(wanted))
    assert not wanted.is_in_place(published(wanted, storageClassName="slow"))
    assert not wanted.is_in_place(published(wanted, nodeTopology={"matchLabels": {"zone": "a"}}))
