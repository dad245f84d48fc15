"""What the verbs know about a kind that says nothing of its own, and of one that does."""

from __future__ import annotations

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.request.resource import Resource


async def test_a_row_without_hooks_lets_everything_pass() -> None:
    row, obj = Resource(kinds.LEASES), {"metadata": {"name": "x"}}
    row.prepare(obj, None)
    row.default(obj)
    assert row.validate(obj, None, subresource="") == []
    assert (row.inward(obj), row.outward(obj)) == (obj, obj)
    assert obj == {"metadata": {"name": "x"}}
    assert row.field_names == frozenset()


def test_names_follow_from_the_kind() -> None:
    leases, pods = Resource(kinds.LEASES), Resource(kinds.PODS)
    assert (leases.key, leases.collection, leases.schema_name) == (
        "coordination.k8s.io/leases",
        "coordination.k8s.io/leases",
        "coordination.v1.Lease",
    )
    assert (pods.key, pods.schema_name) == ("pods", "core.v1.Pod")


def test_events_of_both_groups_are_one_collection() -> None:
    old, new = RESOURCES["events"], RESOURCES["events.k8s.io/events"]
    assert old.collection == new.collection
    assert {"involvedObject.name", "reason"} <= old.field_names
    assert {"regarding.name", "reason"} <= new.field_names


def test_normal_form_drops_what_is_unknown_and_names_it() -> None:
    obj = {"metadata": {"name": "x"}, "spec": {"holderIdentity": "me", "holder": "you"}}
    assert Resource(kinds.LEASES).normalize(obj) == ['unknown field "spec.holder"']
    assert obj["spec"] == {"holderIdentity": "me"}
