from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]


def _scoped(operator: str, *values: str) -> dict[str, Any]:
    requirement = {"scopeName": "VolumeAttributesClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [requirement]}}


def named(**fields: Any) -> Obj:
    return {"metadata": {"name": "x", "namespace": "ns"}} | fields


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param("resourcequotas", named(spec={"hard": {"requests.storage": "5Gi", "pods": "3"}}), id="quota"),
        pytest.param(
            "limitranges",
            named(spec={"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]}),
            id="limits",
        ),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(
            "resourcequotas",
            named(spec={"hard": {"pods": "-1"}}),
            'spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0',
            id="negative quota",
        ),
        pytest.param(
            "resourcequotas",
            named(spec={"scopes": ["BestEffort"]}),
            "spec.scopes: Forbidden: of the scopes of quotas this server offers only VolumeAttributesClass; leave others"
            " out",
            id="scopes are rejected by name",
        ),
        pytest.param(
            "resourcequotas",
            named(spec=_scoped("In")),
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is "
            "'In' or 'NotIn'",
            id="scope without values",
        ),
        pytest.param(
            "resourcequotas",
            named(spec=_scoped("Exists") | {"hard": {"pods": "1"}}),
            'spec.scopes: Invalid value: "VolumeAttributesClass": unsupported scope applied to resource pods',
            id="scope of pods",
        ),
        pytest.param(
            "limitranges",
            named(spec={"limits": [{"type": "PersistentVolumeClaim"}]}),
            "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither "
            "was provided",
            id="limits of nothing",
        ),
        pytest.param(
            "limitranges",
            named(
                spec={
                    "limits": [{"type": "PersistentVolumeClaim", "min": {"storage": "2Gi"}, "max": {"storage": "1Gi"}}]
                }
            ),
            'spec.limits[0].min[storage]: Invalid value: "2Gi": min value 2Gi is greater than max value 1Gi',
            id="min above max",
        ),
    ],
)
def test_wrong_ones_are_told_what_is_wrong(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert said in faults(key, wrong)
