"""Autoscalers, ReplicationControllers, templates of pods, runtime and attributes classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.makers import named

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
CONTROLLERS, TEMPLATES = "replicationcontrollers", "podtemplates"
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param(CONTROLLERS, named(spec={"template": TEMPLATE}), id="controller"),
        pytest.param(TEMPLATES, named(template=TEMPLATE), id="template"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(CONTROLLERS, named(spec={}), "spec.selector: Required value", id="no selector"),
        pytest.param(
            CONTROLLERS,
            named(spec={"selector": {"x": "y"}, "template": TEMPLATE}),
            "`selector` does not match template `labels`",
            id="selector",
        ),
        pytest.param(
            TEMPLATES, named(template={"spec": {}}), "template.spec.containers: Required value", id="template"
        ),
    ],
)
def test_faults_are_named(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    found = faults(key, wrong)
    assert any(said in line for line in found), found
