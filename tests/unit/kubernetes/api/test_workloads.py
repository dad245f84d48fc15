"""Templates of workloads, which stay plain data."""

from __future__ import annotations

from tonnage.kubernetes.api.kinds import STATEFUL_SETS
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.workloads import template_meta


def test_the_metadata_of_a_templates_pods() -> None:
    found = STATEFUL_SETS.decode(b"""{"spec": {"replicas": 2, "template": {"metadata": {"labels": {"a": "b"},
        "annotations": null, "finalizers": ["f"], "name": "left out"}, "spec": {"futureField": 1}}}}""")
    assert template_meta(found.spec.template) == ObjectMeta(labels={"a": "b"}, finalizers=["f"])
    assert found.spec.template["spec"] == {"futureField": 1}


def test_a_template_without_metadata() -> None:
    assert template_meta({}) == template_meta({"metadata": None}) == ObjectMeta()
