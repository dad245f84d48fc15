from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]


def named(**fields: Any) -> Obj:
    return {"metadata": {"name": "x", "namespace": "ns"}} | fields


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param("namespaces", named(), id="namespace"),
        pytest.param("nodes", named(spec={"taints": [{"key": "k", "effect": "NoSchedule"}]}), id="node"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(
            "nodes",
            named(spec={"taints": [{"key": "k", "effect": "Never"}]}),
            'metadata.taints[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", '
            '"NoExecute"',
            id="unknown taint effect",
        ),
    ],
)
def test_wrong_ones_are_told_what_is_wrong(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert said in faults(key, wrong)


def test_a_namespace_is_a_dns_label(faults: Faults) -> None:
    (fault,) = faults("namespaces", {"metadata": {"name": "a.b"}})
    assert fault.startswith('metadata.name: Invalid value: "a.b": a lowercase RFC 1123 label')


def test_a_namespace_is_terminating_only_while_it_is_deleted(faults: Faults) -> None:
    status = {"status": {"phase": "Terminating"}}
    gone = {"metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert faults("namespaces", gone | status, gone, "status") == []
    assert faults("namespaces", named() | status, named(), "status") == [
        "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
    ]


def test_a_nodes_pod_range_is_set_once(faults: Faults) -> None:
    old = named(spec={"podCIDRs": ["10.0.0.0/24"]})
    assert faults("nodes", old, named(spec={})) == []
    assert faults("nodes", named(spec={"podCIDRs": ["10.1.0.0/24"]}), old)[0].startswith("spec.podCIDRs: Forbidden")
