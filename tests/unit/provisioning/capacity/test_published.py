"""Published capacity less reservations: how long they count, and against what."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.provisioning.capacity.published import NO_BOUND, PublishedStorage
from tonnage.provisioning.capacity.topology_index import NodeLabels

HERE = {names.TOPOLOGY_NODE: "n1"}


@pytest.fixture
def published() -> PublishedStorage:
    """Two nodes without capacity."""
    return of_nodes("n1", "n2")


def of_nodes(*nodes: str) -> PublishedStorage:
    published = PublishedStorage(NodeLabels())
    for node in nodes:
        published.set_node(node, {names.TOPOLOGY_NODE: node})
    return published


def capacity(
    size: int | None, counted: int | None = None, *, storage_class: str = "fast", pool: str = "ssd", **more: Any
) -> CSIStorageCapacity:
    """What node n1 publishes for a class."""
    notes = {} if counted is None else {names.OBSERVED_CLAIM_VERSION: str(counted)}
    head = {"name": storage_class, "labels": {names.POOL_LABEL: pool} if pool else {}, "annotations": notes}
    numbers = {} if size is None else {"capacity": str(size)}
    body = {"metadata": head, "storageClassName": storage_class, "nodeTopology": {"matchLabels": HERE}}
    return CAPACITIES.decode(msgspec.json.encode({**body, **numbers, **more}))


def claim(version: int, *, node: str = "n1", name: str = "a", size: str = "5", volume: str = "") -> Any:
    """A claim as it is at a resourceVersion."""
    notes = {names.SELECTED_NODE: node} if node else {}
    notes |= {names.BIND_COMPLETED: "yes"} if volume else {}
    head = {"name": name, "namespace": "x", "uid": name, "resourceVersion": str(version), "annotations": notes}
    spec = {"resources": {"requests": {"storage": size}}, "storageClassName": "fast", "volumeName": volume}
    return CLAIMS.decode(msgspec.json.encode({"metadata": head, "spec": spec}))


def left(published: PublishedStorage, storage_class: str = "fast") -> int:
    return published.on("n1")[storage_class][0].left


def test_a_reservation_counts_from_before_its_write_until_it_is_counted(published: PublishedStorage) -> None:
    published.put(capacity(20, 10**9))
    published.reserve("a", "n1", "fast", 5)
    assert left(published) == 15
    published.put(capacity(20, 41))
    published.confirm("a", 42)
    for counted, expected in ((41, 15), (None, 15), (42, 20)):
        published.put(capacity(20, counted))
        assert left(published) == expected


def test_another_class_written_a_moment_later_counts_by_itself(published: PublishedStorage) -> None:
    published.put(capacity(20, 42))
    published.put(capacity(20, 41, storage_class="slow"))
    published.reserve("a", "n1", "fast", 5, version=42)
    assert (left(published), left(published, "slow")) == (20, 15)


def test_pools_and_nodes_are_apart_but_for_the_unknown(published: PublishedStorage) -> None:
    published.put(capacity(20, 0))
    published.put(capacity(20, 0, storage_class="slow", pool="disk"))
    published.reserve("a", "n1", "fast", 5, version=1)
    published.reserve("b", "n1", "", 7, version=1)
    published.reserve("c", "n2", "fast", 3, version=1)
    assert (left(published), left(published, "slow")) == (8, 13)


def test_an_older_version_gives_nothing_back(published: PublishedStorage) -> None:
    published.put(capacity(20, 0))
    published.reserve("a", "n1", "fast", 5)
    published.follow(claim(100, node=""), "fast")  # the write is under way
    published.confirm("a", 42)
    published.follow(claim(41, node=""), "fast")
    assert left(published) == 15
    published.follow(claim(43, node=""), "fast")
    assert (left(published), published.outstanding(), published.node_of("a")) == (20, 0, "")


@pytest.mark.parametrize(("counted", "exact", "expected"), [(None, True, 20), (1, True, 15), (1, False, 20)])
def test_bound(published: PublishedStorage, counted: int | None, exact: bool, expected: int) -> None:
    published.put(capacity(20, counted))
    published.follow(claim(42), "fast", exact=exact)
    assert left(published) == 15
    published.follow(claim(43, volume="pv"), "fast")
    published.bound("unknown")
    assert left(published) == expected


def test_a_claim_that_another_program_sent_elsewhere_is_moved(published: PublishedStorage) -> None:
    published.put(capacity(20, 0))
    published.follow(claim(1), "fast")
    published.follow(claim(2, node="n2"), "fast")
    assert (left(published), published.node_of("a"), published.version_of("a")) == (20, "n2", 2)
    published.drop("a")
    published.drop("a")
    assert published.node_of("a") == ""


def test_the_claim_of_a_populator_takes_the_place_of_the_first(published: PublishedStorage) -> None:
    published.put(capacity(20))
    published.follow(claim(1), "fast")
    published.follow(claim(2, name="prime-a"), "fast")
    assert left(published) == 15


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (capacity(20), (20, 20)),
        (capacity(20, maximumVolumeSize="6"), (20, 6)),
        (capacity(None, maximumVolumeSize="6"), (6, 6)),
        (capacity(None), (-1, -1)),
        (capacity(20, maximumVolumeSize="many"), (-1, -1)),
    ],
)
def test_numbers(published: PublishedStorage, given: CSIStorageCapacity, expected: tuple[int, int]) -> None:
    published.put(given)
    offer = published.on("n1")["fast"][0]
    assert (offer.free, offer.largest) == expected
    assert (offer.capacity == NO_BOUND) is (given.capacity is None and given.maximum_volume_size is not None)


def test_a_node_that_goes_takes_its_capacity_along(published: PublishedStorage) -> None:
    published.put(capacity(20, 0))
    published.reserve("a", "n1", "fast", 5)
    published.set_node("n1", None)
    assert "fast" not in published.on("n1")
    published.set_node("n1", HERE)
    assert left(published) == 15


class NodeOfTwoClasses(RuleBasedStateMachine):
    """A node whose agent publishes one object for each of two classes of a pool, one after the other and late; claims
    are sent by what is published and reserved. Whatever comes when: no more is sent than there is, and when all is
    told, all that is free can be sent."""

    ROOM = 20

    def __init__(self) -> None:
        super().__init__()
        self.storage = of_nodes("n1")
        self.version = 10
        self.sent: dict[str, tuple[int, int]] = {}  # claims that take room: size, version
        self.on_the_way: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
        for storage_class in "ab":
            self.storage.put(capacity(self.ROOM, 0, storage_class=storage_class))

    def free(self, storage_class: str) -> int:
        return left(self.storage, storage_class)

    @rule(storage_class=st.sampled_from("ab"), size=st.integers(1, 12))
    def send(self, storage_class: str, size: int) -> None:
        if self.free(storage_class) < size:
            return
        self.version += 1
        uid = f"claim-{self.version}"
        self.storage.reserve(uid, "n1", storage_class, size)
        self.sent[uid] = (size, self.version)
        self.storage.confirm(uid, self.version)

    @rule()
    def publish(self) -> None:
        """The agent has seen all that was sent so far."""
        free = self.ROOM - sum(size for size, _ in self.sent.values())
        for storage_class in "ab":
            self.on_the_way[storage_class].append((free, self.version))

    @rule(storage_class=st.sampled_from("ab"))
    def arrive(self, storage_class: str) -> None:
        self.arrive_first(storage_class)

    def arrive_first(self, storage_class: str) -> None:
        if self.on_the_way[storage_class]:
            free, counted = self.on_the_way[storage_class].pop(0)
            self.storage.put(capacity(free, counted, storage_class=storage_class))

    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        if self.sent:
            self.storage.bound(data.draw(st.sampled_from(sorted(self.sent))))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A claim goes, and its room is told later."""
        if self.sent:
            uid = data.draw(st.sampled_from(sorted(self.sent)))
            del self.sent[uid]
            self.storage.drop(uid)

    @rule()
    def settle(self) -> None:
        """All is told: what is free can be sent, to the byte."""
        self.publish()
        for storage_class in "ab":
            del self.on_the_way[storage_class][:-1]
            self.arrive_first(storage_class)
        free = self.ROOM - sum(size for size, _ in self.sent.values())
        assert [self.free(storage_class) for storage_class in "ab"] == [free, free]

    @invariant()
    def never_more_than_there_is(self) -> None:
        assert sum(size for size, _ in self.sent.values()) <= self.ROOM


TestNodeOfTwoClasses = NodeOfTwoClasses.TestCase
TestNodeOfTwoClasses.settings = examples(60, machine=True, stateful_step_count=40, deadline=None)
