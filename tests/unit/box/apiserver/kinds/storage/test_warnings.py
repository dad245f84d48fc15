"""Warnings about storage classes."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.storage.warnings import storage_class


def test_an_old_label_of_a_topology_is_warned_of() -> None:
    expressions = [{"key": key, "values": ["z"]} for key in ("failure-domain.beta.kubernetes.io/zone", "a.b/zone")]
    (warning,) = storage_class({"allowedTopologies": [{"matchLabelExpressions": expressions}]}, None)
    assert warning.startswith("allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.17")
