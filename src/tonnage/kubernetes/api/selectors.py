"""Label, field and node selectors, compiled for repeated matching."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.core import NodeSelector, NodeSelectorTerm
from tonnage.kubernetes.api.meta import LabelSelector, SelectorRequirement
from tonnage.kubernetes.api.number import signed

# Possessive: what was taken is not given back, so that no text takes more than linear time.
_TOKEN = re.compile(
    r"\s*+(?:(?P<set>!?[^\s,()=!<>]++)\s++(?P<op>in|notin)\s*+\((?P<values>[^()]*+)\)|(?P<plain>[^,()]*+))\s*+(?:,|$)"
)
MAX_REQUIREMENTS = 1000
_OPERATORS = {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}


@dataclass(frozen=True)
class Requirement:
    """key operator values; operators as in SelectorRequirement."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @functools.cached_property
    def _wanted(self) -> frozenset[str]:
        return frozenset(self.values)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy it."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self._wanted
            case "NotIn":
                return value is None or value not in self._wanted
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return value is not None and _compare(self.operator, value, self.values)


def _compare(operator: str, value: str, values: Sequence[str]) -> bool:
    number, bound = signed(value), signed(values[0]) if values else None
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


@dataclass(frozen=True)
class Selector:
    """Requirements that must all hold; none selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy all requirements."""
        for requirement in self.requirements:  # noqa: SIM110  # a generator costs as much as all the rest
            if not requirement.matches(labels):
                return False
        return True

    def __bool__(self) -> bool:
        """Whether it selects less than everything."""
        return bool(self.requirements)


EVERYTHING = Selector()


def parse_labels(text: str) -> Selector:
    """Read `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`. Raises: InvalidError."""
    requirements: list[Requirement] = []
    position, text = 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.end() == position:
            raise InvalidError(f"cannot read label selector {text[:200]!r} at {text[position : position + 20]!r}")
        position = match.end()
        _check_number(requirements)
        requirements.append(_requirement(match, text))
    return Selector(tuple(requirements))


def _check_number(requirements: Sequence[Requirement]) -> None:
    if len(requirements) >= MAX_REQUIREMENTS:
        raise InvalidError(f"a selector has at most {MAX_REQUIREMENTS} requirements")


def _requirement(match: re.Match[str], text: str) -> Requirement:
    if match["op"]:
        values = tuple(v.strip() for v in match["values"].split(","))
        return Requirement(match["set"], "In" if match["op"] == "in" else "NotIn", values)
    plain = match["plain"].strip()
    for sign, operator in (("!=", "NotIn"), ("==", "In"), ("=", "In"), (">", "Gt"), ("<", "Lt")):
        if sign in plain:
            key, value = (p.strip() for p in plain.split(sign, 1))
            return Requirement(_key(key, text), operator, (value,))
    if plain.startswith("!"):
        return Requirement(_key(plain[1:].strip(), text), "DoesNotExist")
    return Requirement(_key(plain, text), "Exists")


def _key(key: str, text: str) -> str:
    if not key or not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_./]*", key):
        raise InvalidError(f"cannot read label selector {text[:200]!r}: {key[:200]!r} is not a label key")
    return key


def parse_fields(text: str) -> Selector:
    """Read `metadata.name=x,spec.nodeName!=y`; keys are field paths. Raises: InvalidError."""
    requirements: list[Requirement] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        _check_number(requirements)
        for sign, operator in (("!=", "NotIn"), ("==", "In"), ("=", "In")):
            if sign in part:
                key, value = part.split(sign, 1)
                requirements.append(Requirement(key.strip(), operator, (value.strip(),)))
                break
        else:
            raise InvalidError(f"cannot read field selector {part[:200]!r}: want field=value or field!=value")
    return Selector(tuple(requirements))


def from_label_selector(selector: LabelSelector) -> Selector:
    """Compile metav1.LabelSelector. Raises: InvalidError on an unknown operator."""
    equal = [Requirement(k, "In", (v,)) for k, v in selector.match_labels.items()]
    return Selector((*equal, *(_compile(e) for e in selector.match_expressions)))


def _compile(expression: SelectorRequirement) -> Requirement:
    if expression.operator not in _OPERATORS:
        raise InvalidError(f"selector on {expression.key!r}: {expression.operator!r} is not an operator")
    return Requirement(expression.key, expression.operator, tuple(expression.values))


NodeMatcher = Callable[[Mapping[str, str], str], bool]


def node_matcher(selector: NodeSelector) -> NodeMatcher:
    """Compile a NodeSelector into match(labels, node name): one term must hold, an empty term holds for no node."""
    terms = [term_matcher(t) for t in selector.node_selector_terms]

    def matches(labels: Mapping[str, str], name: str) -> bool:
        for term in terms:  # noqa: SIM110  # as above
            if term(labels, name):
                return True
        return False

    return matches


def term_matcher(term: NodeSelectorTerm) -> NodeMatcher:
    """Compile one term (preferred node affinity)."""
    labels_part = Selector(tuple(_compile(e) for e in term.match_expressions))
    fields_part = Selector(tuple(_compile(e) for e in term.match_fields))
    if not labels_part and not fields_part:
        return lambda labels, name: False
    if not fields_part:
        return lambda labels, name: labels_part.matches(labels)
    return lambda labels, name: labels_part.matches(labels) and fields_part.matches({"metadata.name": name})
