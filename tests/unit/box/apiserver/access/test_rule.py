"""Rules: what one allows, and which rights somebody lacks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.box.apiserver.access.rule import Rule, described, missing
from tonnage.box.apiserver.request.user import Attributes

PODS: dict[str, Any] = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}
SUBRESOURCE = {"apiGroups": ["apps"], "resources": ["*/scale"], "verbs": ["*"]}
NAMED = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["get"]}
PATHS = {"nonResourceURLs": ["/healthz", "/metrics/*"], "verbs": ["get"]}


@pytest.mark.parametrize(
    ("rule", "asked", "right"),
    [
        (PODS, Attributes("get", "", "pods", name="p"), True),
        (PODS, Attributes("get", "", "pods", "log"), True),
        (PODS, Attributes("get", "", "pods", "exec"), False),
        (PODS, Attributes("delete", "", "pods"), False),
        (PODS, Attributes("get", "apps", "pods"), False),
        (SUBRESOURCE, Attributes("patch", "apps", "deployments", "scale"), True),
        (SUBRESOURCE, Attributes("patch", "apps", "deployments"), False),
        (NAMED, Attributes("get", "", "secrets", name="one"), True),
        (NAMED, Attributes("get", "", "secrets", name="two"), False),
        (NAMED, Attributes("get", "", "secrets"), False),
        (PATHS, Attributes("get", path="/healthz"), True),
        (PATHS, Attributes("get", path="/healthz/x"), False),
        (PATHS, Attributes("get", path="/metrics/x"), True),
        (PATHS, Attributes("get", "", "pods"), False),
        (PODS, Attributes("get", path="/api"), False),
    ],
)
def test_what_a_rule_allows(rule: Any, asked: Attributes, right: bool) -> None:
    assert Rule.read(rule).allows(asked) is right


words = st.lists(st.sampled_from(["a", "b", "c", "*"]), min_size=1, max_size=3, unique=True)
rules = st.fixed_dictionaries({"apiGroups": words, "resources": words, "verbs": words})


@given(owned=st.lists(rules, max_size=3), wanted=rules, verb=words, group=words, resource=words)
def test_who_covers_a_rule_may_do_all_that_it_allows(
    owned: list[Any], wanted: Any, verb: list[str], group: list[str], resource: list[str]
) -> None:
    mine = [Rule.read(rule) for rule in owned]
    asked = Attributes(verb[0], group[0], resource[0])
    if not missing(mine, [wanted]) and Rule.read(wanted).allows(asked):
        assert any(rule.allows(asked) for rule in mine)


def test_a_right_to_one_object_is_covered_by_none_to_another() -> None:
    assert missing([Rule.read(NAMED)], [NAMED]) == []
    assert missing([Rule.read(NAMED)], [NAMED | {"resourceNames": ["two"]}])
    assert missing([Rule.read(NAMED)], [{k: v for k, v in NAMED.items() if k != "resourceNames"}])


def test_missing_rights_are_described_as_by_kubernetes() -> None:
    assert described(missing([], [PODS, PATHS])) == [
        '{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}',
        '{APIGroups:[""], Resources:["pods/log"], Verbs:["get" "list"]}',
        '{NonResourceURLs:["/healthz"], Verbs:["get"]}',
        '{NonResourceURLs:["/metrics/*"], Verbs:["get"]}',
    ]
