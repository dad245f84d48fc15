"""Strategies that several groups use."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj


def without_status(new: Obj, old: Obj | None) -> None:
    """Status is written by its owner, later; it is always there, as Go writes it, and clients read it at once."""
    if old is None:
        new["status"] = {}
