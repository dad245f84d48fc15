"""Which CustomResourceDefinitions are taken: those of kinds that are served, as they are served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tonnage.kubernetes.api.kinds import DEFINITIONS, SNAPSHOTS
from tonnage_box.apiserver.kinds.apiextensions.validation import NATIVE

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
NAME = SNAPSHOTS.qualified
V1 = {"name": "v1", "served": True, "storage": True}


def definition(name: str = NAME, **spec: Any) -> Obj:
    kind = NATIVE.get(name, SNAPSHOTS)
    whole = {
        "group": kind.group, "names": {"kind": kind.kind, "plural": kind.plural}, "versions": [V1],
        "scope": "Namespaced" if kind.namespaced else "Cluster",
    }  # fmt: skip
    return {"metadata": {"name": name}, "spec": whole | spec}


@pytest.mark.parametrize("name", NATIVE)
def test_kinds_that_are_served_are_taken(faults: Faults, name: str) -> None:
    more = [{"name": "v1beta1", "served": False, "storage": False}, V1]
    for body in (definition(name), definition(name, versions=more)):
        assert faults(DEFINITIONS.key, body) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (definition("foos.example.com"), "metadata.name: Forbidden: custom resources are not served here, only these"),
        (definition(group="example.com"), 'spec.group: Invalid value: "example.com"'),
        (definition(scope="Cluster"), 'spec.scope: Invalid value: "Cluster"'),
        (definition(names={"kind": "Snap", "plural": "volumesnapshots"}), 'spec.names.kind: Invalid value: "Snap"'),
        (definition(versions=[V1 | {"name": "v1beta1"}]), f"{NAME} is served in version v1 here"),
        (definition(versions=[V1 | {"served": False}]), "spec.versions: Invalid value: []"),
    ],
)
def test_others_are_rejected_by_name(faults: Faults, body: Obj, said: str) -> None:
    found = faults(DEFINITIONS.key, body)
    assert len(found) == 1
    assert said in found[0]
