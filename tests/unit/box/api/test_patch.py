"""JSON patch and merge patch: the examples of the RFCs, and what must hold for any value."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import ApiInvalidError, InvalidError
from tonnage_box.api.patch import apply_json_patch, merge, same

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3))
objects = st.dictionaries(st.sampled_from("abc/~"), values, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return value


# RFC 7386, appendix A


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


@given(objects, objects)
def test_merge_changes_nothing_given_and_may_be_repeated(target: Any, patch: Any) -> None:
    before = copy.deepcopy((target, patch))
    once = merge(target, patch)
    assert (target, patch) == before
    assert merge(once, patch) == once


@given(objects)
def test_merge_into_nothing_is_the_patch_without_nulls(patch: Any) -> None:
    assert merge({}, patch) == without_nulls(patch)


# RFC 6902, appendix A, and more


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["x"]}], {"foo": ["bar", ["x"]]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
        ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        ({"a": [1, 2, 3]}, [{"op": "move", "from": "/a/0", "path": "/a/2"}], {"a": [2, 3, 1]}),
        ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"a/b": 1}, [{"op": "replace", "path": "/a~1b", "value": 2}], {"a/b": 2}),
        ({"": 1}, [{"op": "remove", "path": "/"}], {}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}),
        ({"a": None}, [{"op": "test", "path": "/a", "value": None}], {"a": None}),
        # What the API server's library does beyond the RFC.
        ({"a": {}}, [{"op": "replace", "path": "/a/b", "value": 1}], {"a": {"b": 1}}),
        ({}, [{"op": "replace", "path": "/a~1b", "value": None}], {"a/b": None}),
        ({"a": 1}, [{"op": "test", "path": "/b", "value": None}], {"a": 1}),
        ({"a": 1}, [{"op": "copy", "from": "/b", "path": "/c"}], {"a": 1, "c": None}),
        ({"a": [1, 2, 3]}, [{"op": "replace", "path": "/a/-1", "value": 4}], {"a": [1, 2, 4]}),
        ({"a": [1, 2, 3]}, [{"op": "remove", "path": "/a/-3"}], {"a": [2, 3]}),
        ({"a": [1, 2]}, [{"op": "add", "path": "/a/-1", "value": 3}], {"a": [1, 2, 3]}),
        ({"a": [1, 2]}, [{"op": "test", "path": "/a/-2", "value": 1}], {"a": [1, 2]}),
    ],
)
def test_json_patch(target: Any, operations: Any, result: Any) -> None:
    assert apply_json_patch(target, operations) == result


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ({"op": "test", "path": "/foo", "value": "bar2"}, ApiInvalidError),
        ({"op": "test", "path": "/n", "value": True}, ApiInvalidError),
        ({"op": "remove", "path": "/nothing"}, ApiInvalidError),
        ({"op": "replace", "path": "/nothing/x", "value": 1}, ApiInvalidError),
        ({"op": "replace", "path": "/foo/x", "value": 1}, ApiInvalidError),
        ({"op": "replace", "path": "/list/2", "value": 1}, ApiInvalidError),
        ({"op": "test", "path": "/nothing", "value": 1}, ApiInvalidError),
        ({"op": "test", "path": "/nothing/x", "value": None}, ApiInvalidError),
        ({"op": "copy", "from": "/nothing/x", "path": "/y"}, ApiInvalidError),
        ({"op": "move", "from": "/nothing", "path": "/y"}, ApiInvalidError),
        ({"op": "add", "path": "/nothing/x", "value": 1}, ApiInvalidError),
        ({"op": "add", "path": "/list/3", "value": 1}, ApiInvalidError),
        ({"op": "add", "path": "/list/01", "value": 1}, ApiInvalidError),
        ({"op": "add", "path": "/list/-4", "value": 1}, ApiInvalidError),
        ({"op": "remove", "path": "/list/-3"}, ApiInvalidError),
        ({"op": "replace", "path": "/list/-", "value": 1}, ApiInvalidError),
        ({"op": "add", "path": "/list/99999999999999999999", "value": 1}, ApiInvalidError),
        ({"op": "add", "path": "/foo"}, InvalidError),
        ({"op": "add", "path": "foo", "value": 1}, InvalidError),
        ({"op": "move", "from": "/obj", "path": "/obj/x"}, InvalidError),
        ({"op": "remove", "path": ""}, InvalidError),
        ({"op": "grow", "path": "/foo"}, InvalidError),
        ("nonsense", InvalidError),
    ],
)
def test_json_patch_rejects(operation: Any, error: type[Exception]) -> None:
    target = {"foo": "bar", "n": 1, "list": [1, 2], "obj": {}}
    before = copy.deepcopy(target)
    with pytest.raises(error):
        apply_json_patch(target, [{"op": "add", "path": "/new", "value": 1}, operation])
    assert target == before


def test_json_patch_is_a_list_of_bounded_length() -> None:
    with pytest.raises(InvalidError):
        apply_json_patch({}, {"op": "add"})
    with pytest.raises(InvalidError, match="at most"):
        apply_json_patch({}, [{"op": "test", "path": "", "value": {}}] * 10_001)


@given(objects, st.sampled_from("abc/~"), values)
def test_add_then_remove_gives_back_what_was(target: Any, name: str, value: Any) -> None:
    path = "/new" + name.replace("~", "~0").replace("/", "~1")
    operations = [{"op": "add", "path": path, "value": value}, {"op": "test", "path": path, "value": value}]
    before = copy.deepcopy(target)
    added = apply_json_patch(target, operations)
    assert target == before
    assert same(apply_json_patch(added, [{"op": "remove", "path": path}]), before)


@given(values, values)
def test_same_is_equality_that_knows_booleans(one: Any, other: Any) -> None:
    assert same(one, copy.deepcopy(one))
    assert same(one, other) == same(other, one)
    if same(one, other):
        assert one == other


@pytest.mark.parametrize("op", [["add"], {"add": 1}, 5, None])
def test_json_patch_of_no_operation(op: Any) -> None:
    with pytest.raises(InvalidError, match="is not an operation"):
        apply_json_patch({}, [{"op": op, "path": "/a", "value": 1}])


def test_json_patch_that_doubles_itself_is_rejected() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": f"/a/{n}"} for n in range(60)]
    with pytest.raises(ApiInvalidError, match="more than 3145728 bytes"):
        apply_json_patch({"a": {"x": "y" * 100}}, doubling)
    assert len(apply_json_patch({"a": {"x": "y" * 100}}, doubling[:4])["a"]) == 5
