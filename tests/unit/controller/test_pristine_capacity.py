"""What a node would have for volumes if it had none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.controller.node_templates import pristine
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeSpec
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.provisioning.capacity.node_template import TemplateCapacity

GI = 1 << 30


def offer(cls: str, free: str, *, largest: str | None = None, pool: str = "", reason: str = "") -> CSIStorageCapacity:
    meta = ObjectMeta(
        name=cls,
        labels={names.POOL_LABEL: pool} if pool else {},
        annotations={names.REASON: reason} if reason else {},
    )
    return CSIStorageCapacity(metadata=meta, storage_class_name=cls, capacity=free, maximum_volume_size=largest)


def volume(cls: str, size: str) -> PersistentVolume:
    return PersistentVolume(spec=PersistentVolumeSpec(storage_class_name=cls, capacity={"storage": size}))


@pytest.mark.parametrize(
    ("offers", "volumes", "expected"),
    [
        pytest.param([offer("a", "9Gi")], [], {"a": TemplateCapacity(9 * GI, 9 * GI)}, id="empty"),
        pytest.param(
            [offer("a", "9Gi")], [volume("a", "1Gi")], {"a": TemplateCapacity(10 * GI, 10 * GI)}, id="one volume"
        ),
        pytest.param(
            [offer("a", "9Gi", pool="p"), offer("b", "9Gi", pool="p"), offer("c", "5Gi", pool="q")],
            [volume("a", "1Gi"), volume("b", "2Gi")],
            {
                "a": TemplateCapacity(12 * GI, 12 * GI),
                "b": TemplateCapacity(12 * GI, 12 * GI),
                "c": TemplateCapacity(5 * GI, 5 * GI),
            },
            id="classes of one pool",
        ),
        pytest.param(
            [offer("a", "1Gi")], [volume("gone", "7Gi")], {"a": TemplateCapacity(GI, GI)}, id="volume of no class"
        ),
        pytest.param(
            [offer("a", "6Gi", largest="4Gi")],
            [volume("a", "5Gi")],
            {"a": TemplateCapacity(11 * GI, 5 * GI)},
            id="whole disks",
        ),
        pytest.param(
            [offer("a", "0", largest="0")], [volume("a", "5Gi")], {"a": TemplateCapacity(5 * GI, 5 * GI)}, id="full"
        ),
        pytest.param([offer("a", "0", reason="there is no such pool")], [], {}, id="cannot serve it"),
    ],
)
def test_pristine(
    offers: list[CSIStorageCapacity], volumes: list[PersistentVolume], expected: dict[str, TemplateCapacity]
) -> None:
    assert pristine({o.storage_class_name: o for o in offers}, volumes) == expected


@given(whole=st.integers(1, 100), sizes=st.lists(st.integers(1, 10), max_size=20))
def test_what_is_learned_is_the_same_however_much_is_taken(whole: int, sizes: list[int]) -> None:
    taken: list[int] = []
    for size in sizes:
        if sum(taken) + size <= whole:
            taken.append(size)
    free = f"{whole - sum(taken)}Gi"
    found = pristine({"a": offer("a", free, largest=free, pool="p")}, [volume("a", f"{size}Gi") for size in taken])
    assert found["a"].capacity == whole * GI
    assert found["a"].largest <= whole * GI
