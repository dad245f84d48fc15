"""Objects of any kind, with a name."""

from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.kinds.groups import RESOURCES

Obj = dict[str, Any]


def named(**fields: Any) -> Obj:
    return {"metadata": {"name": "x"}} | fields


def defaulted(key: str, **fields: Any) -> Obj:
    obj: Obj = {"metadata": {"name": "x"}} | fields
    RESOURCES[key].default(obj)
    return obj
