"""Autoscalers, ReplicationControllers, templates of pods, runtime and attributes classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.makers import named

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
RUNTIMES, ATTRIBUTES = "node.k8s.io/runtimeclasses", "storage.k8s.io/volumeattributesclasses"


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param(RUNTIMES, named(handler="runc", overhead={"podFixed": {"cpu": "1"}}), id="runtime"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(RUNTIMES, named(handler="A_b"), "handler: Invalid value", id="handler"),
        pytest.param(RUNTIMES, named(), "handler: Required value", id="no handler"),
        pytest.param(
            RUNTIMES,
            named(handler="a", scheduling={"tolerations": [{"operator": "X"}]}),
            "scheduling.tolerations[0]",
            id="toleration",
        ),
    ],
)
def test_faults_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    found = faults(key, wrong)
    assert any(said in line for line in found), found


def test_what_may_not_change(faults: Faults) -> None:
    assert faults(RUNTIMES, named(handler="b"), named(handler="a")) == [
        'handler: Invalid value: "b": field is immutable'
    ]
    before = named(driverName="a.b", parameters={"k": "v"})
    assert faults(ATTRIBUTES, before | {"parameters": {"k": "w"}}, before)
