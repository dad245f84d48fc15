"""v1 and v2 of HorizontalPodAutoscaler: there and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage_box.apiserver.kinds.autoscaling import versions

Obj = dict[str, Any]
KEY = "autoscaling.alpha.kubernetes.io/metrics"
goals = st.fixed_dictionaries(
    {"type": st.just("Utilization")}, optional={"averageUtilization": st.integers(1, 100), "averageValue": st.just("1")}
)
resources = st.fixed_dictionaries({"name": st.sampled_from(["cpu", "memory"]), "target": goals})
metrics = st.builds(lambda r: {"type": "Resource", "resource": r}, resources)


@given(st.lists(metrics, max_size=4), st.booleans())
def test_nothing_is_lost(found: list[Obj], behaves: bool) -> None:
    spec: Obj = {"maxReplicas": 3} | ({"metrics": found} if found else {})
    spec |= {"behavior": {"scaleDown": {"selectPolicy": "Max"}}} if behaves else {}
    stored = {"apiVersion": "autoscaling/v2", "metadata": {"name": "x"}, "spec": spec}
    again = versions.inward(versions.outward(stored))
    assert again["apiVersion"] == "autoscaling/v2"
    assert again["metadata"] == {"name": "x"}
    assert again["spec"].get("behavior") == spec.get("behavior")

    def texts(obj: Obj) -> list[str]:
        return sorted(json.dumps(m, sort_keys=True) for m in obj.get("metrics") or ())

    first = next((m for m in found if versions._is_cpu(m)), None)
    if first is not None:  # v1 has the percentage of this one alone
        target = {"type": "Utilization", "averageUtilization": first["resource"]["target"]["averageUtilization"]}
        first["resource"]["target"] = target
    assert texts(again["spec"]) == texts({"metrics": found})


@pytest.mark.parametrize("note", ["", "x", "1", "[1]", '[{"type": 1}]', "[" * 5000, "null"])
def test_an_annotation_that_cannot_be_read_stays_one(note: str) -> None:
    obj = {"apiVersion": "autoscaling/v1", "metadata": {"name": "x", "annotations": {KEY: note}}, "spec": {}}
    stored = versions.inward(obj)
    assert "metrics" not in stored["spec"]
    assert stored["metadata"]["annotations"][KEY] == note
