"""Defaults that several groups use. Pure functions of normalized dicts."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj


def times(status: Obj, *words: str) -> None:
    """Times of conditions, which Kubernetes prints also where they are not known."""
    for condition in status.get("conditions") or ():
        for word in words:
            condition.setdefault(word, None)


def counts(obj: Obj, *words: str) -> None:
    """Numbers of the status that are there from the beginning."""
    status = obj.setdefault("status", {})
    for word in words:
        status.setdefault(word, 0)
