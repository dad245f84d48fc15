"""Policy rules of roles: what they allow, and whether some rules cover others (pkg/registry/rbac/validation)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_box.apiserver.request.user import Attributes

Obj = dict[str, Any]
ALL = "*"
MAX_MISSING = 1000
"""Parts of rules that are shown to somebody who lacks them."""
_FIELDS = ("apiGroups", "resources", "resourceNames", "nonResourceURLs", "verbs")


@dataclass(frozen=True)
class Rule:
    """A PolicyRule with sets in place of lists."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str]
    urls: frozenset[str]

    @classmethod
    def read(cls, rule: Obj) -> Rule:
        """From its JSON form."""
        return cls(
            frozenset(rule.get("verbs") or ()),
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("resources") or ()),
            frozenset(rule.get("resourceNames") or ()),
            frozenset(rule.get("nonResourceURLs") or ()),
        )

    def has_verb(self, verb: str) -> bool:
        """Whether it is for the verb."""
        return verb in self.verbs or ALL in self.verbs

    def has_group(self, group: str) -> bool:
        """Whether it is for the API group."""
        return group in self.groups or ALL in self.groups

    def has_resource(self, resource: str) -> bool:
        """Whether it is for a resource, as `pods` or `pods/log`."""
        _, slash, subresource = resource.partition("/")
        known = self.resources
        return resource in known or ALL in known or bool(slash and f"*/{subresource}" in known)

    def has_name(self, name: str | None) -> bool:
        """Whether it is for objects of that name; None: of all names."""
        return not self.names or (name is not None and name in self.names)

    def allows(self, asked: Attributes) -> bool:
        """Whether the rule allows the action; the namespace is not looked at."""
        if not self.has_verb(asked.verb):
            return False
        if asked.path:
            return _has_url(self.urls, asked.path)
        return self.has_group(asked.group) and self.has_resource(asked.full_resource) and self.has_name(asked.name)


def _has_url(patterns: Iterable[str], path: str) -> bool:
    return any(p in (ALL, path) or (p.endswith(ALL) and path.startswith(p.rstrip(ALL))) for p in patterns)


def missing(owned: Sequence[Rule], wanted: Iterable[Obj]) -> list[Obj]:
    """The parts of the wanted rules that the owned ones do not cover; of very many, the first MAX_MISSING.

    A part has one verb, group, resource and name at most, or one verb and URL. A rule can have as many parts as the
    product of its lists, so they are not made one by one: values that the same owned rules cover are looked at once.
    """
    found: list[Obj] = []
    for rule in wanted:
        for parts in (_missing_urls(owned, rule), _missing_objects(owned, rule)):
            found += itertools.islice(parts, MAX_MISSING - len(found))
    return found


def _missing_urls(owned: Sequence[Rule], rule: Obj) -> Iterator[Obj]:
    urls = tuple(rule.get("nonResourceURLs") or ())
    tests = (Rule.has_verb, lambda own, url: _has_url(own.urls, url))
    for verb, url in _Uncovered(tests, (tuple(rule.get("verbs") or ()), urls)).of(tuple(owned)):
        yield {"nonResourceURLs": [url], "verbs": [verb]}


def _missing_objects(owned: Sequence[Rule], rule: Obj) -> Iterator[Obj]:
    lists = [tuple(rule.get(word) or ()) for word in ("verbs", "apiGroups", "resources", "resourceNames")]
    lists[3] = lists[3] or (None,)  # all names
    tests = (Rule.has_verb, Rule.has_group, Rule.has_resource, Rule.has_name)
    for verb, group, resource, name in _Uncovered(tests, lists).of(tuple(owned)):
        part: Obj = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        yield part if name is None else part | {"resourceNames": [name]}


class _Uncovered:
    """Combinations of one value of each list that no rule covers. tests: for each list, whether a rule has a value."""

    def __init__(self, tests: Sequence[Callable[[Rule, Any], bool]], lists: Sequence[tuple[Any, ...]]) -> None:
        self._tests, self._lists = tests, lists
        self._covered: dict[tuple[int, tuple[Rule, ...]], bool] = {}

    def of(self, owned: tuple[Rule, ...], at: int = 0) -> Iterator[tuple[Any, ...]]:
        """Those of the lists from `at` on; the rules cover the values chosen before."""
        if at == len(self._lists):
            yield from [] if owned else [()]
        elif not self._is_covered(owned, at):
            for value in self._lists[at]:
                for rest in self.of(self._having(owned, at, value), at + 1):
                    yield (value, *rest)

    def _having(self, owned: tuple[Rule, ...], at: int, value: Any) -> tuple[Rule, ...]:
        return tuple(rule for rule in owned if self._tests[at](rule, value))

    def _is_covered(self, owned: tuple[Rule, ...], at: int) -> bool:
        """Whether the rules cover all combinations of the lists from `at` on. Each set of rules is looked at once."""
        if at == len(self._lists):
            return bool(owned)
        key = (at, owned)
        if key not in self._covered:
            self._covered[key] = any(self._has_all(rule, at) for rule in owned) or all(
                self._is_covered(having, at + 1)
                for having in dict.fromkeys(self._having(owned, at, value) for value in self._lists[at])
            )
        return self._covered[key]

    def _has_all(self, rule: Rule, at: int) -> bool:
        """Whether one rule covers all combinations of the lists from `at` on."""
        there_is = zip(self._tests[at:], self._lists[at:], strict=True)
        return all(test(rule, value) for test, values in there_is for value in values)


def described(parts: Iterable[Obj]) -> list[str]:
    """Rules as Kubernetes prints those that somebody lacks: verbs of the same object joined, one line for each."""
    joined: dict[str, tuple[Obj, list[str]]] = {}
    for part in parts:
        rest = {word: part[word] for word in _FIELDS if word in part and word != "verbs"}
        joined.setdefault(json.dumps(rest), (rest, []))[1].extend(part["verbs"])
    shown = {_line({**rest, "verbs": list(dict.fromkeys(verbs))}) for rest, verbs in joined.values()}
    return sorted(shown)


def _line(rule: Obj) -> str:
    names = {
        "apiGroups": "APIGroups",
        "resources": "Resources",
        "resourceNames": "ResourceNames",
        "nonResourceURLs": "NonResourceURLs",
        "verbs": "Verbs",
    }
    fields = (f"{names[word]}:[{' '.join(map(_quoted, rule[word]))}]" for word in _FIELDS if word in rule)
    return "{" + ", ".join(fields) + "}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
