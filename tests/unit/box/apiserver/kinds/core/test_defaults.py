from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.kinds.core import defaults

Obj = dict[str, Any]


def test_a_namespace_carries_its_name_as_a_label() -> None:
    namespace: Obj = {"metadata": {"name": "ns"}}
    defaults.namespace(namespace)
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": "ns"}


def test_limits_of_containers_follow_from_one_another() -> None:
    limits: Obj = {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}}
    defaults.limit_range(limits)
    (item,) = limits["spec"]["limits"]
    assert (item["default"], item["defaultRequest"]) == ({"cpu": "2"}, {"cpu": "2", "memory": "1Mi"})
