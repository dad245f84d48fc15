"""Errors of classes on a node: recorded, emitted once, doubted after a while."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.node.capacity.poller import LONGEST, MAX_AGE, ClassErrorEvents, fault_of, shorten
from tonnage.provisioning.claims.node_scope import CapacitySource, NodeScope
from tonnage_box.testing.clock import ManualClock

SOURCE = CapacitySource(names.DRIVER, "late", "scratch")


class _Events:
    """Keeps what is emitted."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def warning(self, about: Any, reason: str, message: str, *, once: str = "") -> None:
        self.told[f"{about.name}/{reason}/{once}"] = message


def _class(uid: str = "1", **parameters: str) -> StorageClass:
    body = {"metadata": {"name": "late", "uid": uid}, "provisioner": names.DRIVER, "parameters": parameters}
    return msgspec.convert(body, StorageClass)


@pytest.fixture
def events() -> Any:
    return _Events()


@pytest.fixture
def errors(events: Any, manual_clock: ManualClock) -> ClassErrorEvents:
    return ClassErrorEvents(events, NodeScope("n1", "cluster"), manual_clock)


def test_an_unknown_parameter_is_an_error_of_the_class() -> None:
    assert fault_of(_class()) == ""
    assert "unknown parameter" in fault_of(_class(**{"tonnage.dev/other": "x"}))


def test_an_error_is_emitted_once(errors: ClassErrorEvents, events: Any) -> None:
    for _ in range(2):
        errors.found(SOURCE, _class(), "no such pool")
    assert list(events.told.values()) == [
        f"driver {names.DRIVER} on node n1 can make no volumes of this class: no such pool"
    ]
    assert errors.get(SOURCE) == "no such pool"
    errors.clear(SOURCE)
    assert errors.get(SOURCE) == ""


def test_it_holds_for_a_while_and_for_one_object(errors: ClassErrorEvents, manual_clock: ManualClock) -> None:
    errors.found(SOURCE, _class(), "no")
    assert errors.fresh(SOURCE, _class()) == "no"
    assert errors.fresh(SOURCE, _class(uid="2")) == ""
    manual_clock.now += MAX_AGE
    assert errors.fresh(SOURCE, _class()) == ""
    errors.found(SOURCE, _class(), "no")
    errors.doubt()
    assert (errors.fresh(SOURCE, _class()), errors.get(SOURCE)) == ("", "no")


def test_a_reason_is_one_short_line() -> None:
    assert shorten("a\n  b") == "a b"
    assert len(shorten("x" * 1000)) == LONGEST
