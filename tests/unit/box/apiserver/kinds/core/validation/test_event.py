from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]


def named(**fields: Any) -> Obj:
    return {"metadata": {"name": "x", "namespace": "ns"}} | fields


EVENT = named(involvedObject={"kind": "Pod", "name": "p", "namespace": "ns"}, reason="R", message="m")


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param("events", EVENT, id="event"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(
            "events",
            EVENT | {"involvedObject": {"kind": "Pod", "namespace": "other"}},
            'involvedObject.namespace: Invalid value: "other": does not match event.namespace',
            id="event of another namespace",
        ),
    ],
)
def test_wrong_ones_are_told_what_is_wrong(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert said in faults(key, wrong)


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param(
            "events",
            {"metadata": {"name": "Node.1", "namespace": "default"}, "involvedObject": {"kind": "Node", "name": "n"}},
            id="event of a node",
        ),
    ],
)
def test_what_real_clients_send_passes(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []
