"""The fast check lets pass only what is in normal form."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from tests.unit.box.apiserver.schema.test_decode import objects, quantities

from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.schema import decode, fast_path, schemas

Obj = dict[str, Any]


@given(quantities())
def test_a_quantity_that_passes_the_quick_way_is_canonical(amount: Any) -> None:
    obj = {"capacity": amount}
    if fast_path.is_normal("storage.v1.CSIStorageCapacity", obj | {"storageClassName": "c"}):
        assert str(Quantity.parse(amount)) == amount


@pytest.mark.parametrize("amount", ["26620Mi", "30716Mi", "4Gi", "100m", "1500m", "2", "27917287425", "4028754Ki"])
def test_usual_quantities_take_the_quick_way(amount: str) -> None:
    assert fast_path.is_normal("storage.v1.CSIStorageCapacity", {"capacity": amount, "storageClassName": "c"})


@given(objects("core.v1.PersistentVolumeClaim", 4) | objects("core.v1.ContainerStatus", 3))
def test_the_quick_way_lets_pass_only_what_the_long_way_leaves_alone(obj: Obj) -> None:
    name = "core.v1.PersistentVolumeClaim" if obj.keys() & {"spec", "metadata"} else "core.v1.ContainerStatus"
    quick = fast_path.is_normal(name, obj)
    before = copy.deepcopy(obj)
    walk = decode._Walk()
    walk.struct(obj, schemas.struct(name), "")

    if quick:
        assert obj == before
        assert walk.unknown == []
    again = copy.deepcopy(obj)
    assert walk.unknown or decode.normalize(name, again) == []
    assert again == obj
