"""Rules: what one allows, and which rights somebody lacks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage_box.apiserver.access.rule import MAX_MISSING, Rule, described, missing
from tonnage_box.apiserver.request.user import Attributes

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


some = st.lists(st.sampled_from(["a", "b", "a/c", "*/c", "*"]), max_size=3, unique=True)
named_rules = st.fixed_dictionaries(
    {"apiGroups": some, "resources": some, "verbs": some, "resourceNames": some, "nonResourceURLs": some}
)


@given(owned=st.lists(named_rules, max_size=4), wanted=st.lists(named_rules, max_size=2))
def test_each_part_is_missing_unless_one_rule_covers_it(owned: list[Any], wanted: list[Any]) -> None:
    mine = [Rule.read(rule) for rule in owned]
    parts = [part for rule in wanted for part in _parts(rule)]
    expected = [part for part in parts if missing([], [part]) and not any(not missing([r], [part]) for r in mine)]
    assert missing(mine, wanted) == expected


def _parts(rule: Any) -> list[Any]:
    """Rules of one verb and URL, and of one verb, group, resource and name."""
    urls = [{"nonResourceURLs": [u], "verbs": [v]} for v in rule["verbs"] for u in rule["nonResourceURLs"]]
    objects = [
        {"apiGroups": [g], "resources": [r], "verbs": [v]} | ({"resourceNames": [n]} if n else {})
        for v, g, r, n in itertools.product(
            rule["verbs"], rule["apiGroups"], rule["resources"], rule["resourceNames"] or [""]
        )
    ]
    return urls + objects


class Counted(frozenset[str]):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, value: object) -> bool:
        Counted.asked += 1
        return super().__contains__(value)


@pytest.mark.parametrize("owned", ["nothing", "all of it", "all but one verb", "halves"])
def test_the_work_grows_with_the_lists_and_not_with_their_product(owned: str) -> None:
    many = [f"x{number}" for number in range(28)]
    wanted = {"apiGroups": many, "resources": many, "verbs": many, "resourceNames": many}
    verbs = {"nothing": [], "all of it": [many], "all but one verb": [many[:-1]], "halves": [many[:14], many[14:]]}
    rules = [Rule.read(wanted | {"verbs": some_verbs}) for some_verbs in verbs[owned]]
    mine = [Rule(*(Counted(part) for part in (r.verbs, r.groups, r.resources, r.names, r.urls))) for r in rules]
    Counted.asked = 0
    lacking = missing(mine, [wanted])
    assert Counted.asked < 5000
    assert len(lacking) == (0 if owned in ("all of it", "halves") else MAX_MISSING)


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
