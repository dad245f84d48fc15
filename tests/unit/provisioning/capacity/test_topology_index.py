"""Indexes by node labels: what a node reaches, and nodes with a label."""

from __future__ import annotations

import pytest

from tonnage.kubernetes.api.core import NodeSelector, NodeSelectorTerm
from tonnage.kubernetes.api.meta import LabelSelector, SelectorRequirement
from tonnage.provisioning.capacity.topology_index import (
    EVERYWHERE,
    ByTopology,
    NodeLabels,
    reach_of_labels,
    reach_of_nodes,
)

EAST = LabelSelector(match_labels={"zone": "east"})
EITHER = LabelSelector(match_expressions=[SelectorRequirement(key="zone", operator="In", values=["east", "west"])])
ANY = LabelSelector(match_expressions=[SelectorRequirement(key="zone", operator="Exists")])


@pytest.mark.parametrize(
    ("selector", "buckets", "zones"),
    [
        (EAST, (("zone", "east"),), {"east"}),
        (EITHER, (("zone", "east"), ("zone", "west")), {"east", "west"}),
        (ANY, (), {"east", "west", "north"}),
        (LabelSelector(), (), {"east", "west", "north", ""}),
    ],
)
def test_reach_of_labels(selector: LabelSelector, buckets: tuple[tuple[str, str], ...], zones: set[str]) -> None:
    reach = reach_of_labels(selector)
    labels = {zone: {"zone": zone} if zone else {} for zone in ("east", "west", "north", "")}
    assert reach.buckets == buckets
    assert {zone for zone, found in labels.items() if reach.matches(found, "n")} == zones


def test_reach_of_nodes() -> None:
    assert reach_of_nodes(None) is EVERYWHERE
    terms = [NodeSelectorTerm(match_expressions=found.match_expressions) for found in (EITHER, ANY)]
    assert reach_of_nodes(NodeSelector(node_selector_terms=terms[:1])).buckets == (("zone", "east"), ("zone", "west"))
    assert reach_of_nodes(NodeSelector(node_selector_terms=terms)).buckets == ()


def test_objects_near_a_node() -> None:
    index: ByTopology[str] = ByTopology(lambda name: (len(name), name))
    for name, selector in (("two", EITHER), ("a", EAST), ("others", ANY)):
        index.add(name, reach_of_labels(selector))
    assert list(index.near({"zone": "east"})) == [["a", "two"], ["others"]]
    assert list(index.near({"zone": "west"})) == [["two"], ["others"]]
    for name, selector in (("two", EITHER), ("others", ANY)):
        index.remove(name, reach_of_labels(selector))
    assert list(index.near({"zone": "west"})) == []
    assert list(index.near({"zone": "east"})) == [["a"]]


def test_nodes_with_a_label() -> None:
    nodes = NodeLabels()
    nodes.put("n1", {"zone": "east"})
    nodes.put("n2", {"zone": "west"})
    assert set(nodes.with_label("zone", "east")) == {"n1"}
    nodes.put("n2", {"zone": "east"})
    nodes.put("n3", {})
    assert set(nodes.with_label("zone", "east")) == {"n1", "n2"}
    nodes.put("n1", None)
    assert set(nodes.with_label("zone", "east")) == {"n2"}
    assert not nodes.with_label("zone", "west")
    assert sorted(nodes) == ["n2", "n3"]
    assert nodes.get("n1") is None
