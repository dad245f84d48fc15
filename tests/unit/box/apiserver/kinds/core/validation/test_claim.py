from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
KEY = "persistentvolumeclaims"


def claim(*, size: str = "1Gi", status: Obj | None = None, annotations: Obj | None = None, **spec: Any) -> Obj:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}} | spec
    wanted = {k: v for k, v in wanted.items() if v is not None}
    obj: Obj = {"metadata": {"name": "c", "annotations": annotations or {}}, "spec": wanted}
    return obj | ({"status": status} if status else {})


def test_a_good_claim_passes(faults: Faults) -> None:
    assert faults(KEY, claim(storageClassName="fast", volumeMode="Block")) == []
    assert faults(KEY, claim(size="107374182400m")) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(
            claim(accessModes=None),
            "spec.accessModes: Required value: at least 1 access mode is required",
            id="no mode",
        ),
        pytest.param(
            claim(accessModes=["ReadWriteOncePod", "ReadWriteOnce"]),
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
            id="ReadWriteOncePod not alone",
        ),
        pytest.param(
            claim(size="0"), 'spec.resources[storage]: Invalid value: "0": must be greater than zero', id="size 0"
        ),
        pytest.param(claim(resources={}), "spec.resources[storage]: Required value", id="no size"),
        pytest.param(
            claim(volumeMode="Tape"),
            'spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesystem"',
            id="unknown volumeMode",
        ),
        pytest.param(
            claim(dataSource={"kind": "VolumeSnapshot", "name": "s"}),
            "spec.dataSource: Invalid value: \"VolumeSnapshot\": must be 'PersistentVolumeClaim' when referencing the "
            "default apiGroup",
            id="data source without a group",
        ),
        pytest.param(
            claim(
                dataSource={"kind": "PersistentVolumeClaim", "name": "a"},
                dataSourceRef={"kind": "PersistentVolumeClaim", "name": "b"},
            ),
            'spec: Invalid value: "spec.dataSource": must match dataSourceRef',
            id="two data sources",
        ),
        pytest.param(
            claim(selector={"matchExpressions": [{"key": "k", "operator": "In"}]}),
            "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or "
            "'NotIn'",
            id="selector without values",
        ),
    ],
)
def test_a_wrong_claim_is_told_what_is_wrong(faults: Faults, wrong: Obj, said: str) -> None:
    assert said in faults(KEY, wrong)


def test_a_class_name_follows_the_rules_of_names(faults: Faults) -> None:
    (fault,) = faults(KEY, claim(storageClassName="Fast!"))
    assert fault.startswith(
        'spec.storageClassName: Invalid value: "Fast!": a lowercase RFC 1123 subdomain must consist'
    )


BOUND = {"phase": "Bound", "capacity": {"storage": "1Gi"}}


@pytest.mark.parametrize(
    ("new", "old"),
    [
        pytest.param(claim(volumeName="pv"), claim(), id="volumeName set once"),
        pytest.param(claim(storageClassName="late"), claim(), id="default class filled in"),
        pytest.param(
            claim(size="2Gi", status=BOUND, volumeName="pv"),
            claim(status=BOUND, volumeName="pv"),
            id="growth when bound",
        ),
        pytest.param(
            claim(size="2Gi", status=BOUND, volumeName="pv"),
            claim(size="9Gi", status=BOUND, volumeName="pv"),
            id="growth taken back",
        ),
        pytest.param(claim(annotations={"a/b": "c"}), claim(), id="annotations"),
    ],
)
def test_what_may_change(faults: Faults, new: Obj, old: Obj) -> None:
    assert faults(KEY, new, old) == []


@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        pytest.param(claim(size="2Gi"), claim(), "spec: Forbidden: spec is immutable after", id="growth when pending"),
        pytest.param(
            claim(volumeName="b"),
            claim(volumeName="a"),
            "spec: Forbidden: spec is immutable after",
            id="volumeName twice",
        ),
        pytest.param(
            claim(storageClassName="b"),
            claim(storageClassName="a"),
            "spec: Forbidden: spec is immutable after",
            id="another class",
        ),
        pytest.param(
            claim(storageClassName="b"),
            claim(storageClassName=""),
            "spec: Forbidden: spec is immutable after",
            id='class after "no class"',
        ),
        pytest.param(
            claim(status=BOUND, size="512Mi", volumeName="pv"),
            claim(status=BOUND, volumeName="pv"),
            "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity",
            id="shrinking",
        ),
        pytest.param(
            claim(volumeMode="Block"),
            claim(),
            'volumeMode: Invalid value: "Block": field is immutable',
            id="volumeMode",
        ),
    ],
)
def test_what_may_not_change(faults: Faults, new: Obj, old: Obj, said: str) -> None:
    assert [f for f in faults(KEY, new, old) if f.startswith(said)]
