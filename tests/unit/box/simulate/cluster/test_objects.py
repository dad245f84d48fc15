"""Objects of a simulation, as the API server would send them."""

from __future__ import annotations

from tonnage.kubernetes.api import matching, names
from tonnage.scheduler.framework.storage_objects import reach_of
from tonnage_box.simulate.cluster import objects
from tonnage_box.simulate.workload.workload import SimulatedNodes, StreamSpec, VolumeSpec


def test_a_pod_of_a_stream_asks_for_what_its_template_has() -> None:
    like = objects.template(StreamSpec("s", "1/h", "1m", cpu="250m", priority=7, volumes=[VolumeSpec("1Gi")]))
    claim = objects.claim("c", "late", 10, 3)
    found = objects.ask(like, "p", [claim])
    assert dict(found.demand.requests)["cpu"] == 250
    assert (found.pod.key, found.pod.metadata.uid, found.pod.spec.priority) == ("simulated/p", "p", 7)
    assert [(use.key, use.ephemeral) for use in found.claims] == [("simulated/c", False)]
    assert found.shape is like.shape


def test_a_claim_and_its_volume() -> None:
    claim = objects.claim("c", "late", 10, 3)
    assert (matching.requested(claim), matching.class_name(claim), matching.is_bound(claim)) == (10, "late", False)
    bound, volume = objects.bound(claim, "n1", 4), objects.volume(claim, "n1", 5)
    assert matching.is_bound(bound)
    assert bound.spec.volume_name == volume.metadata.name
    assert matching.is_claimed_by(volume, bound)
    assert matching.capacity(volume) == 10
    assert [reach_of(volume).matches({names.TOPOLOGY_NODE: node}, node) for node in ("n1", "n2")] == [True, False]


def test_node_and_class() -> None:
    node = objects.node("n", SimulatedNodes({"scratch": "1Ti"}, cpu="8"))
    assert (node.metadata.labels[names.TOPOLOGY_NODE], node.status.allocatable["cpu"]) == ("n", "8")
    assert objects.storage_class("late").late
    assert objects.driver().spec.storage_capacity
