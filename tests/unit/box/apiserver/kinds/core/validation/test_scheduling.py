"""Where a pod may run: tolerations, affinity, spread, gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.core.validation.test_pod import pod

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_V = "spec.volumes[0]"
_TEMPLATE = f"{_V}.ephemeral.volumeClaimTemplate"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(
            pod(tolerations=[{"key": "k", "operator": "Is"}]),
            'spec.tolerations[0].operator: Unsupported value: "Is": supported values: "Equal", "Exists"',
            id="unknown toleration operator",
        ),
        pytest.param(
            pod(
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "In"}]}]
                        }
                    }
                }
            ),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
            ".matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            id="node affinity without values",
        ),
    ],
)
def test_a_wrong_pod_is_told_what_is_wrong(faults: Faults, wrong: Obj, said: str) -> None:
    assert said in faults("pods", wrong)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(
            {"tolerations": [{"tolerationSeconds": 1, "operator": "Exists"}]},
            "spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute'",
            id="seconds of nothing",
        ),
        pytest.param(
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value",
            id="no topology",
        ),
        pytest.param(
            {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101}]}}},
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101",
            id="weight",
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "Wait"}]},
            'spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "Wait"',
            id="spread",
        ),
        pytest.param(
            {"schedulingGates": [{"name": "a"}, {"name": "a"}]},
            'spec.schedulingGates[1]: Duplicate value: "a"',
            id="gates",
        ),
    ],
)
def test_wrong_terms(faults: Faults, spec: Obj, said: str) -> None:
    assert [fault for fault in faults("pods", pod(**spec)) if fault.startswith(said)]


def test_tolerations_are_only_added(faults: Faults) -> None:
    old = pod(tolerations=[{"key": "a", "operator": "Exists"}])
    new = pod(tolerations=[{"key": "b", "operator": "Exists"}])
    assert "existing toleration can not be modified" in faults("pods", new, old)[0]
    assert faults("pods", pod(tolerations=[*new["spec"]["tolerations"], *old["spec"]["tolerations"]]), old) == []


@pytest.mark.parametrize("preferred", [False, True])
def test_the_terms_of_a_pod_are_bounded(faults: Faults, preferred: bool) -> None:
    term: Obj = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
    word = "preferredDuringSchedulingIgnoredDuringExecution" if preferred else _REQUIRED
    if preferred:
        term = {"weight": 1, "podAffinityTerm": term}

    def terms(wanted: int, unwanted: int) -> Obj:
        return pod(affinity={"podAffinity": {word: [term] * wanted}, "podAntiAffinity": {word: [term] * unwanted}})

    assert faults("pods", terms(60, 40)) == []
    said = "spec.affinity: Too many: 2000: must have at most 100 items"
    assert faults("pods", terms(60, 1940)) == [said]
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}} | {"spec": terms(0, 101)["spec"]}
    made = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    assert faults("apps/deployments", made) == [f"spec.template.{said.replace('2000', '101')}"]


def test_the_spread_constraints_of_a_pod_are_bounded(faults: Faults) -> None:
    def spread(count: int) -> Obj:
        one = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        return pod(topologySpreadConstraints=[one | {"topologyKey": f"k{n}"} for n in range(count)])

    assert faults("pods", spread(32)) == []
    said = "spec.topologySpreadConstraints: Too many: 4000: must have at most 32 items"
    assert faults("pods", spread(4000)) == [said]
