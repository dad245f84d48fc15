"""How the rules are asked: an object goes the way that the verbs take it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tonnage_box.apiserver.kinds.groups import RESOURCES

Obj = dict[str, Any]
Faults = Callable[..., list[str]]


@pytest.fixture
def faults() -> Faults:
    """faults(key, new, old=None) -> "path: message" of each fault; objects are normalized and defaulted first."""

    def ask(key: str, new: Obj, old: Obj | None = None, subresource: str = "") -> list[str]:
        row = RESOURCES[key]
        prepared = []
        for obj in (new, old):
            if obj is not None:
                obj = copy.deepcopy(obj)
                assert row.normalize(obj) == []
                row.default(obj)
            prepared.append(obj)
        assert prepared[0] is not None
        return [f"{c.field}: {c.message}" for c in row.validate(prepared[0], prepared[1], subresource=subresource)]

    return ask
