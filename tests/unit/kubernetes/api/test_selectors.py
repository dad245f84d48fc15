"""Selectors mean what kubectl's users mean by them."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.core import NodeSelector, NodeSelectorTerm
from tonnage.kubernetes.api.meta import LabelSelector, SelectorRequirement
from tonnage.kubernetes.api.selectors import from_label_selector, node_matcher, parse_fields, parse_labels

LABELS = {"app": "web", "tier": "front", "n": "7", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True), ("app=web", True), ("app==web", True), ("app=db", False), ("app!=db", True), ("gone!=x", True),
        ("app", True), ("!app", False), ("!gone", True), ("app in (web,db)", True), ("app in (db)", False),
        ("app notin (db, x)", True), ("gone notin (x)", True), ("app=web,tier=front", True), ("app=web,tier=back", False),
        ("n>6", True), ("n<7", False), ("app>1", False), ("empty=", True), (" app = web , tier in ( front ) ", True),
        ("tonnage.dev/node=n1", False), ("app in (web),!gone,n", True),
    ],
)  # fmt: skip
def test_label_selectors(text: str, matches: bool) -> None:
    assert parse_labels(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["=x", "a=b,,c", "a in b", "a in (b", "!", "a b", "(x)", "a=b)"])
def test_label_selectors_rejected(text: str) -> None:
    with pytest.raises(InvalidError, match="selector"):
        parse_labels(text)


def test_field_selectors() -> None:
    selector = parse_fields("metadata.name=x,spec.nodeName!=n1")

    assert selector.matches({"metadata.name": "x", "spec.nodeName": "n2"})
    assert not selector.matches({"metadata.name": "x", "spec.nodeName": "n1"})
    with pytest.raises(InvalidError):
        parse_fields("metadata.name")


def test_struct_selector() -> None:
    selector = LabelSelector(
        match_labels={"app": "web"}, match_expressions=[SelectorRequirement(key="n", operator="Exists")]
    )

    assert from_label_selector(selector).matches(LABELS)
    assert from_label_selector(LabelSelector()).matches({})
    with pytest.raises(InvalidError, match="Near"):
        from_label_selector(LabelSelector(match_expressions=[SelectorRequirement(key="n", operator="Near")]))


def test_node_selector_terms_are_alternatives_and_an_empty_one_matches_nothing() -> None:
    by_label = NodeSelectorTerm(match_expressions=[SelectorRequirement(key="zone", operator="In", values=["a"])])
    by_name = NodeSelectorTerm(match_fields=[SelectorRequirement(key="metadata.name", operator="In", values=["n2"])])
    matches = node_matcher(NodeSelector(node_selector_terms=[by_label, by_name, NodeSelectorTerm()]))

    assert matches({"zone": "a"}, "n1")
    assert matches({"zone": "b"}, "n2")
    assert not matches({"zone": "b"}, "n1")
    assert not node_matcher(NodeSelector())({}, "n1")
