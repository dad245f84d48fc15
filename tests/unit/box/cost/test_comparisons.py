"""Validation compares each item of a list with a few others, not with all: comparisons in C are counted here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.box.cost.largest import KindField, fields

from tonnage_box.apiserver.kinds.core.validation import pod
from tonnage_box.apiserver.kinds.groups import RESOURCES

_SIZE, _EACH = 800, 60
"""Items of a list, and how often each may be compared: a comparison of all with all takes 400 for each."""
_SAVED = {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z", "namespace": "default"}


class CountedText(str):
    """Text that counts its comparisons with equal hashes, and those in lists."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedText.comparisons += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def counted(value: Any) -> Any:
    """The value with its texts counted; keys are as they were."""
    if isinstance(value, dict):
        return {key: counted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [counted(item) for item in value]
    return CountedText(value) if type(value) is str else value


def lists() -> dict[str, KindField]:
    """A field of each list and map of each struct, in the first kind that has it."""
    found: dict[str, KindField] = {}
    for kind in RESOURCES:
        for field in fields(kind):
            if field.field.type.word in ("[]", "{}"):
                found.setdefault(f"{field.struct}.{field.field.name}", field)
    return found


def comparisons(field: KindField) -> dict[str, int]:
    """How many comparisons validation takes of a new object, of a changed one and of a changed status."""
    row, obj = field.resource, field.largest(_SIZE)
    obj["metadata"] |= {"namespace": "default"}
    row.normalize(obj)
    row.default(obj)
    text, found = json.dumps(obj | {"metadata": obj["metadata"] | _SAVED}), {}
    new, old = (
        counted(json.loads(text)),
        counted(json.loads(text)),
    )  # texts of their own: the same ones are not compared
    new["metadata"]["labels"] = {"a": "b"}
    for step in ("create", "update", "status"):
        CountedText.comparisons = 0
        row.validate(new, None if step == "create" else old, subresource="status" if step == "status" else "")
        found[step] = CountedText.comparisons
    return found


@pytest.mark.slow
def test_no_list_is_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod, "_has_nul", lambda spec: False)  # the encoder takes no subclass of str
    every = {name: comparisons(field) for name, field in lists().items()}
    assert len(every) > 250
    assert {name: found for name, found in every.items() if max(found.values()) > _SIZE * _EACH} == {}
