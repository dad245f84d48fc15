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
        pytest.param(ATTRIBUTES, named(driverName="a.b", parameters={"k": "v"}), id="attributes"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(ATTRIBUTES, named(driverName="a"), "parameters: Required value", id="no parameters"),
        pytest.param(
            ATTRIBUTES, named(driverName="_", parameters={"a": "b"}), "driverName: Invalid value", id="driver"
        ),
    ],
)
def test_faults_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    found = faults(key, wrong)
    assert any(said in line for line in found), found
