"""The cache: indexes follow objects, handlers hear each change once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.pods import Pod, PodSpec
from tonnage.kubernetes.client.cache import Cache


def pod(name: str, node: str, version: int) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, resource_version=str(version)), spec=PodSpec(node_name=node))


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["n1", "n2", None])), max_size=30)


@given(STEPS)
def test_index_and_handlers_agree_with_the_objects(steps: list[tuple[str, str | None]]) -> None:
    cache: Cache[Pod] = Cache()
    cache.add_index("node", lambda p: [p.spec.node_name])
    told: dict[str, Pod] = {}

    def handler(old: Pod | None, new: Pod | None) -> None:
        assert (old.key if old else None) in (None, *told)
        if new is None:
            assert old is not None
            del told[old.key]
        else:
            told[new.key] = new

    cache.on_change(handler)
    for version, (name, node) in enumerate(steps, 1):
        if node is None:
            cache.remove(name)
        else:
            cache.put(pod(name, node, version))

    assert told == {p.key: p for p in cache}
    for node in ("n1", "n2"):
        assert {p.key for p in cache.by("node", node)} == {p.key for p in cache if p.spec.node_name == node}


def test_replace_tells_only_what_differs() -> None:
    cache: Cache[Pod] = Cache()
    cache.replace([pod("a", "n1", 1), pod("b", "n1", 2), pod("c", "n1", 3)])
    heard: list[tuple[str | None, str | None]] = []
    cache.on_change(lambda old, new: heard.append((old.key if old else None, new.key if new else None)))
    heard.clear()

    cache.replace([pod("a", "n1", 1), pod("b", "n2", 4), pod("d", "n1", 5)])

    assert sorted(heard, key=str) == sorted([("c", None), ("b", "b"), (None, "d")], key=str)


def test_late_handler_hears_what_is_there() -> None:
    cache: Cache[Pod] = Cache()
    cache.put(pod("a", "n1", 1))
    heard: list[str] = []

    cache.on_change(lambda old, new: heard.append(new.key if new else "?"))

    assert heard == ["a"]


def test_index_added_late_and_twice() -> None:
    cache: Cache[Pod] = Cache()
    cache.put(pod("a", "n1", 1))
    cache.add_index("node", lambda p: [p.spec.node_name])
    cache.add_index("node", lambda p: ["other"])

    assert [p.key for p in cache.by("node", "n1")] == ["a"]


def test_a_handler_that_fails_keeps_no_change_from_the_others() -> None:
    cache: Cache[Pod] = Cache()
    told: list[str] = []

    def picky(old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name == "odd":
            raise ValueError(new.key)

    cache.on_change(picky)
    cache.on_change(lambda old, new: told.append(new.key if new else "gone"))
    with pytest.raises(ValueError, match="a"):
        cache.replace([pod("a", "odd", 1), pod("b", "n1", 1), pod("c", "odd", 1), pod("d", "n1", 1)])
    assert told == ["a", "b", "c", "d"]
    assert sorted(cache.keys()) == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="b"):
        cache.put(pod("b", "odd", 2))
    assert told[4:] == ["b"]


def test_what_is_to_stay_stays() -> None:
    cache: Cache[Pod] = Cache()
    cache.replace([pod("a", "n1", 1), pod("b", "n1", 1), pod("c", "n1", 1)])
    cache.replace([pod("a", "n2", 2)], keep={"b", "x"})
    assert {o.key: o.spec.node_name for o in cache} == {"a": "n2", "b": "n1"}
