"""Published storage and reservations: nothing is promised twice, nothing is held for ever."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import names
from tonnage.provisioning.capacity.published import PublishedCapacity, PublishedStorage

GI = 1 << 30
NODE = "node-1"


@pytest.fixture
def stage(world: World) -> Any:
    """One node with a late class, 10Gi published by an agent that counts."""
    world.node(NODE)
    world.storage_class()
    world.capacity(NODE, "10Gi", counted=0)
    return world


def offer(world: World, storage_class: str = "late") -> PublishedCapacity:
    found: PublishedCapacity = world.cluster.published.on(NODE)[storage_class][0]
    return found


def left(world: World, storage_class: str = "late") -> int:
    return offer(world, storage_class).left // GI


def assume(world: World, claim: str, size: str = "4Gi", **more: Any) -> None:
    world.claim(claim, size, **more)
    assert world.place(world.pod(f"pod-of-{claim}", claims=[claim])) == NODE


def test_reservation_ends_when_the_object_counts_it(stage: Any) -> None:
    assume(stage, "a")
    version = stage.send("a", NODE)
    assert left(stage) == 6

    stage.capacity(NODE, "10Gi", counted=version - 1)
    assert left(stage) == 6
    stage.capacity(NODE, "6Gi", counted=version)

    assert left(stage) == 6
    assert stage.cluster.published.outstanding() == 0


def test_publication_may_be_faster_than_the_answer(stage: Any) -> None:
    assume(stage, "a")
    stage.capacity(NODE, "6Gi", counted=10_000)
    assert left(stage) == 2  # nobody knows yet whether it counts: not the version of the write

    stage.cluster.published.confirm("uid-a", 9_999)

    assert left(stage) == 6
    assert stage.cluster.published.outstanding() == 0


def test_later_changes_of_a_counted_claim_are_no_new_promise(stage: Any) -> None:
    assume(stage, "a")
    stage.capacity(NODE, "6Gi", counted=stage.send("a", NODE))

    stage.claim("a", "4Gi", annotations={names.SELECTED_NODE: NODE, "another": "change"})

    assert left(stage) == 6


def test_binding_does_not_end_it_before_it_is_counted(stage: Any) -> None:
    assume(stage, "a")
    version = stage.send("a", NODE)

    stage.bound_claim("a", "pv-1", "4Gi")
    assert left(stage) == 6
    stage.capacity(NODE, "6Gi", counted=version)

    assert left(stage) == 6


def test_publishers_that_do_not_count_until_it_is_bound(world: World) -> None:
    world.node(NODE)
    world.storage_class()
    world.capacity(NODE, "10Gi")
    assume(world, "a")
    world.send("a", NODE)
    world.capacity(NODE, "6Gi")
    assert left(world) == 2  # twice for a moment, never too much

    world.bound_claim("a", "pv-1", "4Gi")

    assert left(world) == 6


@pytest.mark.parametrize("how", ["withdrawn", "deleted", "made anew"])
def test_claim_that_does_not_go_there_frees_its_room(stage: Any, how: str) -> None:
    assume(stage, "a")
    stage.send("a", NODE)
    if how == "deleted":
        stage.objects.claims.remove("default/a")
    else:
        stage.claim("a", "4Gi", uid="uid-a" if how == "withdrawn" else "uid-new")

    assert left(stage) == 10
    assert stage.cluster.published.outstanding() == 0


def test_old_version_of_a_claim_is_not_taken_for_a_withdrawal(stage: Any) -> None:
    old = stage.claim("a", "4Gi")
    assert stage.place(stage.pod("p", claims=["a"])) == NODE
    stage.cluster.published.follow(old, "late")  # before the answer
    stage.send("a", NODE)
    stage.cluster.published.follow(old, "late")  # and after it

    assert left(stage) == 6


def test_claims_sent_by_others_are_reserved(stage: Any) -> None:
    sent = {names.SELECTED_NODE: NODE}
    stage.claim("a", "4Gi", annotations=sent)
    assert left(stage) == 6

    stage.claim("a", "4Gi", annotations={names.SELECTED_NODE: "node-2"})
    assert left(stage) == 10
    again = stage.claim("a", "4Gi", annotations=sent)
    assert left(stage) == 6

    stage.bound_claim("a", "pv-1", "4Gi")
    assert left(stage) == 6
    stage.capacity(NODE, "6Gi", counted=int(again.metadata.resource_version))
    assert left(stage) == 6
    assert stage.cluster.published.outstanding() == 0


def test_claim_found_there_at_the_start_is_counted_when_it_is_bound(stage: Any) -> None:
    """Its version is a later one than that of the write which sent it: its agent need not publish that."""
    stage.claim("a", "4Gi", annotations={names.SELECTED_NODE: NODE})
    stage.capacity(NODE, "6Gi", counted=0)
    assert left(stage) == 2

    stage.bound_claim("a", "pv-1", "4Gi")

    assert left(stage) == 6


@pytest.mark.parametrize("order", ["claims first", "objects first"])
def test_whatever_comes_first_the_numbers_are_the_same(world: World, order: str) -> None:
    def claims() -> None:
        world.claim("a", "4Gi", annotations={names.SELECTED_NODE: NODE})

    def objects() -> None:
        world.capacity(NODE, "10Gi", counted=0, pool="default")
        world.node(NODE)
        world.capacity(NODE, "10Gi", counted=0, pool="default", storage_class="other")

    world.storage_class()
    for step in (claims, objects) if order == "claims first" else (objects, claims):
        step()

    assert (left(world), left(world, "other")) == (6, 6)


def test_objects_of_a_pool_count_one_by_one(world: World) -> None:
    """Two classes share a pool; their objects are written one after the other."""
    world.node(NODE)
    for name in ("late", "other"):
        world.storage_class(name)
        world.capacity(NODE, "10Gi", storage_class=name, counted=0, pool="default")
    assume(world, "a")
    version = world.send("a", NODE)
    world.capacity(NODE, "6Gi", counted=version, pool="default")
    assert (left(world), left(world, "other")) == (6, 6)
    assert world.cluster.published.outstanding() == 1

    world.capacity(NODE, "6Gi", storage_class="other", counted=version, pool="default")

    assert (left(world), left(world, "other")) == (6, 6)
    assert world.cluster.published.outstanding() == 0


def test_room_in_pieces_is_not_promised_as_a_whole(stage: Any) -> None:
    stage.capacity(NODE, "10Gi", largest="6Gi", counted=0)
    assume(stage, "a", "4Gi")
    assert offer(stage).largest == 2 * GI  # it may come out of the large piece

    stage.capacity(NODE, "6Gi", largest="6Gi", counted=stage.send("a", NODE))

    assert offer(stage).largest == 6 * GI


def test_objects_come_and_go(stage: Any) -> None:
    assume(stage, "a")
    stage.capacities.remove(f"{names.SYSTEM_NAMESPACE}/late-{NODE}")
    assert "late" not in stage.cluster.published.on(NODE)

    stage.capacity(NODE, "10Gi", counted=0)
    assert left(stage) == 6

    stage.capacity("node-2", "10Gi", counted=0, name=f"late-{NODE}")  # the name taken by another object
    assert "late" not in stage.cluster.published.on(NODE)


def test_node_labels_decide(stage: Any) -> None:
    assume(stage, "a")
    stage.node(NODE, labels={names.TOPOLOGY_NODE: "elsewhere"})
    assert "late" not in stage.cluster.published.on(NODE)

    stage.node(NODE)

    assert left(stage) == 6


def test_numbers_that_cannot_be_read_offer_nothing(stage: Any) -> None:
    stage.capacity(NODE, "much")

    assert offer(stage).largest < 0
    stage.claim("a", "1Gi")
    assert "did not have enough free storage" in stage.place(stage.pod("p", claims=["a"]))


def test_room_is_told_when_it_grows_only(stage: Any) -> None:
    told: list[int] = []
    stage.cluster.published._on_capacity = lambda offer: told.append(offer.left // GI)

    stage.capacity(NODE, "8Gi", counted=0)
    stage.capacity(NODE, "8Gi", counted=1)
    assert told == []
    stage.capacity(NODE, "9Gi", counted=1)
    assume(stage, "a")
    assert told == [9]
    stage.capacity(NODE, "5Gi", counted=stage.send("a", NODE))
    assert told == [9]
    stage.objects.claims.remove("default/a")  # counted already: only the next publication frees it
    assert told == [9]
    stage.capacity(NODE, "9Gi", counted=1)
    assert told == [9, 9]


def test_unknown_names_are_ignored(stage: Any) -> None:
    published: PublishedStorage = stage.cluster.published
    published.drop("nobody")
    published.confirm("nobody", 3)
    published.bound("nobody")
    published.remove("nothing")

    assert published.node_of("nobody") == ""
    assert left(stage) == 10
