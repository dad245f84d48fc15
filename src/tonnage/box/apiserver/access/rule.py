"""Policy rules of roles: what they allow, and whether some rules cover others (pkg/registry/rbac/validation)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage.box.apiserver.request.user import Attributes

Obj = dict[str, Any]
ALL = "*"
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

    def allows(self, asked: Attributes) -> bool:
        """Whether the rule allows the action; the namespace is not looked at."""
        if asked.verb not in self.verbs and ALL not in self.verbs:
            return False
        if asked.path:
            return _has_url(self.urls, asked.path)
        if asked.group not in self.groups and ALL not in self.groups:
            return False
        resources = self.resources
        if (
            ALL not in resources
            and asked.full_resource not in resources
            and not (asked.subresource and f"*/{asked.subresource}" in resources)
        ):
            return False
        return not self.names or asked.name in self.names


def _has_url(patterns: Iterable[str], path: str) -> bool:
    return any(p in (ALL, path) or (p.endswith(ALL) and path.startswith(p.rstrip(ALL))) for p in patterns)


def missing(owned: Sequence[Rule], wanted: Iterable[Obj]) -> list[Obj]:
    """The parts of the wanted rules that the owned ones do not cover."""
    return [part for rule in wanted for part in _parts(rule) if not any(_covers(own, part) for own in owned)]


def _parts(rule: Obj) -> Iterator[Obj]:
    """Split a rule so that each part has one verb, group, resource and name at most, or one verb and URL."""
    for verb in rule.get("verbs") or ():
        for url in rule.get("nonResourceURLs") or ():
            yield {"nonResourceURLs": [url], "verbs": [verb]}
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                part: Obj = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                names = rule.get("resourceNames") or ()
                if not names:
                    yield part
                for name in names:
                    yield part | {"resourceNames": [name]}


def _covers(own: Rule, part: Obj) -> bool:
    verb = part["verbs"][0]
    if verb not in own.verbs and ALL not in own.verbs:
        return False
    if "nonResourceURLs" in part:
        return _has_url(own.urls, part["nonResourceURLs"][0])
    group, resource = part["apiGroups"][0], part["resources"][0]
    _, slash, subresource = resource.partition("/")
    names = part.get("resourceNames")
    return (
        (group in own.groups or ALL in own.groups)
        and (resource in own.resources or ALL in own.resources or bool(slash and f"*/{subresource}" in own.resources))
        and (not own.names or (names is not None and names[0] in own.names))
    )


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
