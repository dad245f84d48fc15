"""What `kubectl explain` says: each kind, and each field that people set, has a sentence of its own."""

from __future__ import annotations

import pytest

from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.schema import schemas

SET_BY_PEOPLE = (
    "storage.v1.StorageClass", "storage.v1.CSIDriverSpec", "core.v1.PersistentVolumeClaimSpec",
    "core.v1.PersistentVolumeSpec", "core.v1.Volume", "core.v1.VolumeMount", "core.v1.CSIVolumeSource",
    "core.v1.Container", "core.v1.PodSpec", "apps.v1.StatefulSetSpec", "core.v1.ServiceSpec", "core.v1.ServicePort",
)  # fmt: skip


@pytest.mark.parametrize("key", [key for key, row in RESOURCES.items() if "get" in row.verbs])
def test_every_kind_and_each_of_its_fields_is_described(key: str) -> None:
    struct = schemas.struct(RESOURCES[key].schema_name)
    bare = {name for name, field in struct.fields.items() if not field.text}
    assert struct.text
    assert all(name.startswith("deprecated") for name in bare), bare
    for field in (struct.fields.get("spec"), struct.fields.get("status")):
        assert field is None or field.text not in ("What is wanted.", "What is.")


@pytest.mark.parametrize("name", SET_BY_PEOPLE)
def test_fields_that_people_set_are_described(name: str) -> None:
    bare = {field.name: field.text for field in schemas.struct(name).fields.values() if not field.text.endswith(".")}
    assert not bare
