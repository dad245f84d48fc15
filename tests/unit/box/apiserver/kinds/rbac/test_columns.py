"""Columns of roles and bindings."""

from __future__ import annotations

from datetime import UTC, datetime

from tonnage_box.apiserver.kinds.rbac import columns as rbac


def test_bindings_show_role_and_subjects() -> None:
    obj = {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [
            {"kind": "User", "name": "jane"},
            {"kind": "User", "name": "joe"},
            {"kind": "ServiceAccount", "name": "robot", "namespace": "ns"},
        ],
    }
    cells = {column.name: column.cell(obj, datetime.now(UTC)) for column in rbac.BINDING}
    assert cells["Role"] == "ClusterRole/view"
    assert (cells["Users"], cells["Groups"], cells["ServiceAccounts"]) == ("jane, joe", "", "ns/robot")
