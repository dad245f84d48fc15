"""Strategic merge patch: lists that merge by key, and the directives that kubectl sends."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError
from tonnage_box.api.strategic import apply


def pod(**spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def container(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": f"{name}:1", **more}


def test_containers_merge_by_name() -> None:
    old = pod(containers=[container("a", env=[{"name": "X", "value": "1"}]), container("b")])
    new = apply(
        old, {"spec": {"containers": [{"name": "a", "image": "a:2", "env": [{"name": "Y", "value": "2"}]}]}}, "Pod"
    )
    env = [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    assert new["spec"]["containers"] == [{"name": "a", "image": "a:2", "env": env}, container("b")]


@pytest.mark.parametrize(
    ("field", "key", "values"),
    [
        ("ports", "containerPort", (80, 81)),
        ("volumeMounts", "mountPath", ("/a", "/b")),
        ("volumeDevices", "devicePath", ("/dev/a", "/dev/b")),
        ("env", "name", ("A", "B")),
    ],
)
def test_lists_of_containers_merge_by_their_keys(field: str, key: str, values: tuple[Any, Any]) -> None:
    old = pod(containers=[container("c", **{field: [{key: values[0], "kept": 1}]})])
    patch = {"spec": {"containers": [{"name": "c", field: [{key: values[0], "n": 2}, {key: values[1]}]}]}}
    assert apply(old, patch, "Pod")["spec"]["containers"][0][field] == [
        {key: values[0], "kept": 1, "n": 2},
        {key: values[1]},
    ]


def test_an_item_is_deleted() -> None:
    old = pod(containers=[container("a"), container("b")])
    new = apply(old, {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}, "Pod")
    assert new["spec"]["containers"] == [container("b")]


def test_a_list_is_replaced() -> None:
    old = pod(containers=[container("a"), container("b")])
    new = apply(old, {"spec": {"containers": [{"$patch": "replace"}, container("c")]}}, "Pod")
    assert new["spec"]["containers"] == [container("c")]


def test_objects_are_replaced_and_deleted() -> None:
    old = pod(nodeSelector={"a": "1"}, securityContext={"runAsUser": 1})
    patch = {"spec": {"nodeSelector": {"$patch": "replace", "b": "2"}, "securityContext": {"$patch": "delete"}}}
    assert apply(old, patch, "Pod")["spec"] == {"nodeSelector": {"b": "2"}}


def test_tolerations_are_replaced_whole() -> None:
    old = pod(tolerations=[{"key": "a"}])
    assert apply(old, {"spec": {"tolerations": [{"key": "b"}]}}, "Pod")["spec"]["tolerations"] == [{"key": "b"}]


def test_finalizers_merge_as_a_set_and_are_taken_out() -> None:
    old = {"metadata": {"finalizers": ["a", "b"]}}
    assert apply(old, {"metadata": {"finalizers": ["b", "c", "c"]}}, "Pod")["metadata"]["finalizers"] == ["a", "b", "c"]
    taken = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert apply(old, taken, "Pod")["metadata"]["finalizers"] == ["b"]
    assert "finalizers" not in apply(old, {"metadata": {"finalizers": None}}, "Pod")["metadata"]


def test_conditions_owners_and_drivers_merge() -> None:
    status = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    patch = {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other"}]}}
    for kind in ("Pod", "Node", "PersistentVolumeClaim", "Namespace"):
        merged = apply(status, patch, kind)["status"]["conditions"]
        assert merged == [{"type": "Ready", "status": "True"}, {"type": "Other"}]
    owners = {"metadata": {"ownerReferences": [{"uid": "1", "name": "a"}]}}
    removed = apply(owners, {"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}]}}, "Pod")
    assert removed["metadata"]["ownerReferences"] == []
    drivers = {"spec": {"drivers": [{"name": "a", "nodeID": "n"}]}}
    added = apply(drivers, {"spec": {"drivers": [{"name": "b", "nodeID": "n"}]}}, "CSINode")
    assert [d["name"] for d in added["spec"]["drivers"]] == ["a", "b"]


def test_retain_keys_drops_the_other_source_of_a_volume() -> None:
    old = pod(volumes=[{"name": "v", "emptyDir": {}}])
    patch = {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}
    assert apply(old, patch, "Pod")["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]


def test_element_order() -> None:
    old = pod(containers=[container("a"), container("b"), container("c")])
    order = [{"name": "c"}, {"name": "a"}]
    new = apply(
        old, {"spec": {"$setElementOrder/containers": order, "containers": [{"name": "a", "image": "a:2"}]}}, "Pod"
    )
    assert [c["name"] for c in new["spec"]["containers"]] == ["c", "a", "b"]
    assert new["spec"]["containers"][1]["image"] == "a:2"


@pytest.mark.parametrize(
    "patch",
    [
        [],
        {"spec": {"$patch": "grow"}},
        {"spec": {"$unknown": 1}},
        {"spec": {"containers": [{"image": "x"}]}},
        {"spec": {"containers": ["x"]}},
        {"spec": {"$retainKeys": "name"}},
        {"spec": {"$retainKeys": ["a"], "b": 1}},
        {"spec": {"$setElementOrder/containers": "x"}},
    ],
)
def test_senseless_patches_are_rejected(patch: Any) -> None:
    with pytest.raises(InvalidError):
        apply(pod(containers=[container("a")]), patch, "Pod")


names = st.sampled_from("abcd")
containers = st.lists(names, unique=True).map(lambda found: [container(n) for n in found])
changes = st.lists(st.tuples(names, st.sampled_from(["delete", "change"])), unique_by=lambda c: c[0])


@given(containers, changes)
def test_merging_lists_holds_for_any_list(old: list[Any], changed: list[tuple[str, str]]) -> None:
    items = [
        {"name": n, "$patch": "delete"} if what == "delete" else {"name": n, "image": "new"} for n, what in changed
    ]
    target, patch = pod(containers=old), {"spec": {"containers": items}}
    before = copy.deepcopy((target, patch))
    result = {c["name"]: c["image"] for c in apply(target, patch, "Pod")["spec"]["containers"]}
    assert (target, patch) == before
    expected = {c["name"]: c["image"] for c in old}
    for name, what in changed:
        if what == "delete":
            expected.pop(name, None)
        else:
            expected[name] = "new"
    assert result == expected


class Counted(str):
    """Text that counts how often it was compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("size", [1000, 4000])
def test_comparisons_grow_as_the_lists(size: int) -> None:
    finalizers = [Counted(f"a.b/c{n}") for n in range(size)]
    names = [Counted(f"c{n}") for n in range(size)]
    backwards = [Counted(f"a.b/c{n}") for n in reversed(range(size))]
    old = pod(containers=[{"name": n} for n in names]) | {"metadata": {"finalizers": finalizers}}
    images = [{"name": Counted(n), "image": "x"} for n in names]
    gone = [{"name": Counted(n), "$patch": "delete"} for n in names]
    Counted.comparisons = 0
    meta = {"finalizers": backwards, "$setElementOrder/finalizers": backwards}
    new = apply(old, {"metadata": meta, "spec": {"containers": images, "$setElementOrder/containers": images}}, "Pod")
    assert new["metadata"]["finalizers"] == backwards
    assert new["spec"]["containers"] == images
    new = apply(
        new, {"metadata": {"$deleteFromPrimitiveList/finalizers": finalizers}, "spec": {"containers": gone}}, "Pod"
    )
    assert new["metadata"]["finalizers"] == new["spec"]["containers"] == []
    assert Counted.comparisons < 40 * size


def test_items_that_are_not_named_follow_those_they_followed() -> None:
    old = {"metadata": {"finalizers": ["x", "a", "y", "z", "b", "w"]}}
    new = apply(old, {"metadata": {"$setElementOrder/finalizers": ["b", "a"]}}, "Pod")
    assert new["metadata"]["finalizers"] == ["x", "b", "w", "a", "y", "z"]
