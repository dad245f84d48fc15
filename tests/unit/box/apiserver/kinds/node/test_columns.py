"""What kubectl get prints of runtime classes."""

from __future__ import annotations

from tests.unit.box.apiserver.kinds.printed import cells


def test_a_runtime_class_shows_its_handler() -> None:
    assert cells("node.k8s.io/runtimeclasses", {"handler": "runc"}) == {"Name": "x", "Handler": "runc", "Age": "5m"}
