"""A simulated agent: reserves all claims of a pod or none, and publishes what is left."""

from __future__ import annotations

from itertools import count

import pytest

from tonnage.base.errors import ExhaustedError
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.node.capacity.publisher import INCREASE_EVERY
from tonnage.provisioning.claims.node_scope import CapacitySource
from tonnage_box.simulate.cluster.agent import Agent, Order
from tonnage_box.simulate.cluster.events import Events
from tonnage_box.simulate.tally import Tally

SOURCE = CapacitySource("driver", "late", "scratch")


class Node:
    """An agent of a pool of 100 bytes, and what it has published."""

    def __init__(self) -> None:
        self.events, self.tally, self.published = Events(), Tally(), list[CSIStorageCapacity]()
        versions = count(1)
        self.agent = Agent(
            "n", {"scratch": 100}, [SOURCE], self.events, self.tally,
            version=lambda: next(versions), publish=self.published.append,
        )  # fmt: skip

    def capacities(self) -> list[str | None]:
        return [found.capacity for found in self.published]


@pytest.fixture
def node() -> Node:
    return Node()


def order(name: str, size: int, version: int = 1) -> Order:
    return Order(name, SOURCE, size, version)


def test_all_claims_of_a_pod_or_none(node: Node) -> None:
    orders = [order("a", 60), order("b", 50, 2)]
    for each in orders:
        node.agent.see(each)
    assert not node.agent.reserve(orders)
    node.agent.sent_back(orders)
    node.agent.see(order("c", 60, 3))
    assert node.agent.reserve([order("c", 60, 3)])
    assert node.agent.ledger.get("a") is None


def test_a_claim_is_published_soon_and_its_end_later(node: Node) -> None:
    only = order("a", 60, 7)
    node.agent.see(only)
    node.events.run(1.0)
    assert node.capacities() == ["100", "40"]
    assert node.published[-1].counted == 7
    assert node.agent.reserve([only])
    node.agent.create(only)
    assert (node.agent.free, node.tally.created, node.tally.held) == ({"scratch": 40}, 1, 60)
    node.agent.delete(only)
    node.events.run(1.0 + 2 * INCREASE_EVERY)
    assert node.capacities()[-1] == "100"
    assert (node.tally.held, node.tally.writes["capacity"]) == (0, len(node.published))


def test_a_ledger_that_gives_away_too_much_is_noticed(node: Node) -> None:
    with pytest.raises(ExhaustedError, match="101 bytes were booked in scratch, which has 100"):
        node.agent.create(order("a", 101))
