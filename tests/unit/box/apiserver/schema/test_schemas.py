from __future__ import annotations

import pytest

from tonnage_box.api import strategic
from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.schema import schemas


def test_every_text_is_read_and_every_reference_resolves() -> None:
    structs = schemas.all_structs()
    for struct in structs.values():
        for field in struct.fields.values():
            kind: schemas.Type | None = field.type
            while kind is not None:
                assert not kind.struct or kind.struct in structs
                kind = kind.item


@pytest.mark.parametrize("key", list(RESOURCES))
def test_every_kind_served_has_its_fields(key: str) -> None:
    struct = schemas.struct(RESOURCES[key].schema_name)
    assert {"apiVersion", "kind", "metadata"} <= struct.fields.keys()
    assert struct.text


@pytest.mark.parametrize(
    ("struct", "field", "wanted"),
    [
        pytest.param("core.v1.PodSpec", "containers", ("[]v1.Container", True, False, "name", False), id="merged list"),
        pytest.param("core.v1.PodSpec", "volumes", ("[]v1.Volume", False, False, "name", True), id="retain keys"),
        pytest.param("meta.v1.ObjectMeta", "finalizers", ("[]string", False, False, "", False), id="set"),
        pytest.param("core.v1.PodSpec", "tolerations", ("[]v1.Toleration", False, False, None, False), id="replaced"),
        pytest.param(
            "core.v1.PersistentVolumeClaimSpec", "storageClassName", ("string", False, True, None, False), id="pointer"
        ),
        pytest.param("core.v1.ContainerPort", "containerPort", ("int32", True, False, None, False), id="number"),
        pytest.param(
            "core.v1.ResourceRequirements", "limits", ("map[string]quantity", False, False, None, False), id="map"
        ),
    ],
)
def test_what_a_line_says(struct: str, field: str, wanted: tuple[str, bool, bool, str | None, bool]) -> None:
    found = schemas.struct(struct).fields[field]
    assert (found.type.go, found.required, found.pointer, found.merge_key, found.retain_keys) == wanted


def test_a_struct_of_the_own_group_is_preferred() -> None:
    requests = schemas.struct("storage.v1.CSIDriverSpec").fields["tokenRequests"].type.item
    assert requests is not None
    assert requests.struct == "storage.v1.TokenRequest"


def test_names_in_documents() -> None:
    assert schemas.struct("core.v1.Pod").definition == "io.k8s.api.core.v1.Pod"
    assert schemas.struct("meta.v1.Status").definition == "io.k8s.apimachinery.pkg.apis.meta.v1.Status"


def test_a_line_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        schemas.split("@x.v1\nPod: A pod.\nPod wrong\n")
    block = schemas.split("@x.v1\nPod: A pod.\n   wrong indent\n")["x.v1.Pod"]
    with pytest.raises(ValueError, match="cannot read"):
        schemas.build("x.v1.Pod", block)


def merged_lists(struct: str, path: str = "") -> dict[str, str]:
    """Path of each list that merges -> its key, below a struct."""
    found = {}
    for field in schemas.struct(struct).fields.values():
        here = f"{path}.{field.name}" if path else field.name
        if field.merge_key is not None:
            found[here] = field.merge_key
        kind = field.type
        while kind.word == "[]" and kind.item is not None:
            kind = kind.item
        if kind.struct:
            found |= merged_lists(kind.struct, here)
    return found


@pytest.mark.parametrize("key", list(RESOURCES))
def test_patches_merge_the_lists_that_openapi_says_they_merge(key: str) -> None:
    """kubectl makes its patches by OpenAPI, the server applies them by tonnage_box/api/strategic.py: they must agree."""
    row = RESOURCES[key]
    said = {
        path: merge_key
        for path, merge_key in merged_lists(row.schema_name).items()
        if "volumeClaimTemplate.metadata" not in path and "volumeClaimTemplates." not in path  # replaced whole
    }
    done = {k: v for k, v in strategic.merge_keys(row.kind.kind).items() if v is not None}
    assert done == said
