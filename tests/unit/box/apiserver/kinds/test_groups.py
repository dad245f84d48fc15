from __future__ import annotations

from typing import Any

import pytest

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.groups import RESOURCES

Obj = dict[str, Any]
EMPTY: Obj = {"metadata": {"name": "x"}}


def test_every_kind_of_the_table_is_served() -> None:
    served = {(r.kind.api_version, r.kind.kind) for r in RESOURCES.values()}
    assert {(k.api_version, k.kind) for k in kinds.ALL} <= served


@pytest.mark.parametrize("key", list(RESOURCES))
def test_selectable_fields_are_there_for_every_object(key: str) -> None:
    row = RESOURCES[key]
    assert row.field_names <= row.fields(EMPTY).keys()
    assert all(isinstance(value, str) for value in row.fields(EMPTY).values())


@pytest.mark.parametrize(
    ("key", "obj", "name", "value"),
    [
        pytest.param("pods", {"spec": {"nodeName": "n"}}, "spec.nodeName", "n", id="pod's node"),
        pytest.param("pods", {"status": {"phase": "Running"}}, "status.phase", "Running", id="pod's phase"),
        pytest.param("nodes", {"spec": {"unschedulable": True}}, "spec.unschedulable", "true", id="cordoned"),
        pytest.param("nodes", {}, "spec.unschedulable", "false", id="not cordoned"),
        pytest.param("namespaces", {"status": {"phase": "Active"}}, "status.phase", "Active", id="namespace"),
        pytest.param("secrets", {"type": "Opaque"}, "type", "Opaque", id="secret"),
        pytest.param("events", {"involvedObject": {"uid": "u"}}, "involvedObject.uid", "u", id="event"),
        pytest.param("events", {"source": {"component": "c"}}, "source", "c", id="event's source"),
        pytest.param("events.k8s.io/events", {"regarding": {"uid": "u"}}, "regarding.uid", "u", id="new event"),
    ],
)
def test_what_can_be_selected_by(key: str, obj: Obj, name: str, value: str) -> None:
    assert RESOURCES[key].fields(EMPTY | obj)[name] == value
    assert name in RESOURCES[key].field_names


def test_names_of_structs() -> None:
    assert RESOURCES["pods"].schema_name == "core.v1.Pod"
    assert RESOURCES["storage.k8s.io/storageclasses"].schema_name == "storage.v1.StorageClass"
