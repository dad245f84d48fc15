"""What every cluster-wide controller is given."""

from __future__ import annotations

from typing import Any

from tests.unit.controller.contexts import context

from tonnage.api import names


def test_all_provisioners_are_handled_unless_some_are_named() -> None:
    kube: Any = None
    assert context(kube, kube).handles("any.example.com")
    ours = context(kube, kube, provisioners=[names.DRIVER])
    assert ours.handles(names.DRIVER)
    assert not ours.handles("any.example.com")
