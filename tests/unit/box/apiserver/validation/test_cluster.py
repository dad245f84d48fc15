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


EVENT = named(involvedObject={"kind": "Pod", "name": "p", "namespace": "ns"}, reason="R", message="m")
NEW_EVENT = named(
    regarding={"kind": "Pod", "name": "p", "namespace": "ns"},
    eventTime="2026-01-01T00:00:00.000000Z",
    reportingController="a.b/c",
    reportingInstance="i",
    action="Act",
    reason="R",
    type="Normal",
)


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param("namespaces", named(), id="namespace"),
        pytest.param("nodes", named(spec={"taints": [{"key": "k", "effect": "NoSchedule"}]}), id="node"),
        pytest.param("events", EVENT, id="event"),
        pytest.param("events.k8s.io/events", NEW_EVENT, id="new event"),
        pytest.param("resourcequotas", named(spec={"hard": {"requests.storage": "5Gi", "pods": "3"}}), id="quota"),
        pytest.param(
            "limitranges",
            named(spec={"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]}),
            id="limits",
        ),
        pytest.param("coordination.k8s.io/leases", named(spec={"holderIdentity": "me"}), id="lease"),
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
        pytest.param(
            "events",
            EVENT | {"involvedObject": {"kind": "Pod", "namespace": "other"}},
            'involvedObject.namespace: Invalid value: "other": does not match event.namespace',
            id="event of another namespace",
        ),
        pytest.param(
            "events.k8s.io/events",
            NEW_EVENT | {"reportingController": ""},
            "reportingController: Required value",
            id="nobody reports",
        ),
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
        pytest.param(
            "coordination.k8s.io/leases",
            named(spec={"leaseDurationSeconds": 0}),
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            id="lease of no time",
        ),
    ],
)
def test_wrong_ones_are_told_what_is_wrong(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert said in faults(key, wrong)


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param("coordination.k8s.io/leases", named(spec={"holderIdentity": ""}), id="lease that was released"),
        pytest.param(
            "events",
            {"metadata": {"name": "Node.1", "namespace": "default"}, "involvedObject": {"kind": "Node", "name": "n"}},
            id="event of a node",
        ),
    ],
)
def test_what_real_clients_send_passes(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


def test_of_a_new_event_only_the_series_changes(faults: Faults) -> None:
    series = NEW_EVENT | {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    assert faults("events.k8s.io/events", series, NEW_EVENT) == []
    assert faults("events.k8s.io/events", NEW_EVENT | {"reason": "Other"}, NEW_EVENT) == [
        'reason: Invalid value: "Other": field is immutable'
    ]


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
