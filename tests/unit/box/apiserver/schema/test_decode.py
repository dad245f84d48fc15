from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.examples import examples

from tonnage.base.errors import ApiError
from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.printers import table
from tonnage_box.apiserver.schema import decode, schemas

Obj = dict[str, Any]
POD = "core.v1.Pod"


@pytest.mark.parametrize(
    ("given", "normal_form"),
    [
        pytest.param({"spec": {"nodeName": None}}, {"spec": {}}, id="null is nothing"),
        pytest.param({"metadata": {"labels": {}}}, {"metadata": {}}, id="empty map"),
        pytest.param({"spec": {"tolerations": []}}, {"spec": {}}, id="empty list"),
        pytest.param({"spec": {"nodeName": ""}}, {"spec": {}}, id="empty text"),
        pytest.param({"spec": {"hostNetwork": False}}, {"spec": {}}, id="false"),
        pytest.param(
            {"spec": {"enableServiceLinks": False}}, {"spec": {"enableServiceLinks": False}}, id="false that differs"
        ),
        pytest.param(
            {"spec": {"overhead": {"memory": "1024Mi", "cpu": 1, "x/y": "0.5"}}},
            {"spec": {"overhead": {"memory": "1Gi", "cpu": "1", "x/y": "500m"}}},
            id="quantities are canonical",
        ),
        pytest.param(
            {"metadata": {"creationTimestamp": "2026-01-01T02:00:00.5+02:00"}},
            {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}},
            id="times are UTC, in seconds",
        ),
        pytest.param(
            {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
            {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
            id="empty structs stay",
        ),
    ],
)
def test_normal_form(given: Obj, normal_form: Obj) -> None:
    assert decode.normalize(POD, given) == []
    assert given == normal_form


def test_the_empty_topology_of_a_capacity_stays_for_it_means_all_nodes() -> None:
    obj: Obj = {"nodeTopology": {}, "storageClassName": "c"}
    decode.normalize("storage.v1.CSIStorageCapacity", obj)
    assert obj == {"nodeTopology": {}, "storageClassName": "c"}


def test_the_empty_class_of_a_claim_stays_for_it_means_no_class() -> None:
    obj: Obj = {"spec": {"storageClassName": ""}}
    decode.normalize("core.v1.PersistentVolumeClaim", obj)
    assert obj == {"spec": {"storageClassName": ""}}


def test_unknown_fields_are_named_and_dropped() -> None:
    obj: Obj = {"spec": {"containers": [{"name": "c", "imag": "x"}], "volume": []}}
    assert sorted(decode.normalize(POD, obj)) == [
        'unknown field "spec.containers[0].imag"',
        'unknown field "spec.volume"',
    ]
    assert obj == {"spec": {"containers": [{"name": "c"}]}}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(
            {"spec": {"containers": "x"}},
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
            id="text for a list",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": 7}]}},
            "json: cannot unmarshal number into Go struct field Container.spec.containers.name of type string",
            id="number for text",
        ),
        pytest.param(
            {"spec": {"priority": 1.5}},
            "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32",
            id="fraction for a whole number",
        ),
        pytest.param(
            {"spec": {"priority": 2**31}},
            "json: cannot unmarshal number 2147483648 into Go struct field PodSpec.spec.priority of type int32",
            id="number too large",
        ),
        pytest.param(
            {"spec": {"overhead": {"cpu": "many"}}},
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            id="not a quantity",
        ),
    ],
)
def test_wrong_types_are_a_400_in_the_words_of_kubernetes(wrong: Obj, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode.normalize(POD, wrong)
    assert caught.value.code == 400
    assert caught.value.message == f'Pod in version "v1" cannot be handled as a Pod: {said}'


def test_bytes_must_be_base64() -> None:
    with pytest.raises(ApiError, match="illegal base64 data at input byte 3"):
        decode.normalize("core.v1.Secret", {"data": {"a": "abc!"}})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b'{"a": 1, "b": {"a": 2}}', [], id="none"),
        pytest.param(b'{"spec": {"x": 1, "x": 2}}', ['duplicate field "spec.x"'], id="one"),
        pytest.param(
            b'[{"a": {}, "a": {"b": 1, "b": 2}}]', ['duplicate field "[0].a"', 'duplicate field "[0].a.b"'], id="two"
        ),
    ],
)
def test_duplicate_fields_are_named(body: bytes, said: list[str]) -> None:
    assert decode.duplicates(body) == said


def quantities() -> st.SearchStrategy[Any]:
    numbers = st.integers(0, 5000) | st.sampled_from([1024, 2048, 26620, 30716, 1048576, 10**15, 2**40])
    suffixes = st.sampled_from(["", "m", "u", "n", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
    return numbers | st.builds(lambda n, s: f"{n}{s}", numbers, suffixes) | st.sampled_from(["1.5", "1e3", "0.5Gi"])


def values(kind: schemas.Type, depth: int) -> st.SearchStrategy[Any]:
    """Values that fit a type, canonical or not."""
    match kind.word:
        case "struct":
            return objects(kind.struct, depth - 1)
        case "[]":
            assert kind.item is not None
            return st.lists(values(kind.item, depth), max_size=2)
        case "{}":
            assert kind.item is not None
            return st.dictionaries(st.text("ab", max_size=2), values(kind.item, depth), max_size=2)
        case "quantity":
            return quantities()
        case "time":
            return st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00+01:00"])
        case "microtime":
            return st.sampled_from(["2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:00Z"])
        case "bool":
            return st.booleans()
        case "int" | "long" | "intstr" | "number":
            return st.integers(-3, 3)
        case "bytes":
            return st.sampled_from(["", "YQ==", "YWI="])
        case "any":
            return st.none() | st.just({})
    return st.text("ab", max_size=2)


@cache  # making it takes longer than an example
def objects(name: str, depth: int) -> st.SearchStrategy[Obj]:
    if depth <= 0:
        return st.just({})
    fields = schemas.struct(name).fields.values()
    return st.fixed_dictionaries({}, optional={f.name: values(f.type, depth) for f in fields})


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key, row in RESOURCES.items() if row.verbs != ("create",)])
@examples(8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_fits_the_schema_is_judged_and_never_trips_the_rules(key: str, data: st.DataObject) -> None:
    """Defaults, rules and columns meet objects with any fields missing; none of them may raise."""
    row = RESOURCES[key]
    new, old = (data.draw(objects(row.schema_name, 5)) for _ in range(2))
    for obj in (new, old):
        obj.setdefault("metadata", {})["name"] = "x"
        decode.normalize(row.schema_name, obj)
        row.prepare(obj, None)
        row.default(obj)
        assert isinstance(row.validate(obj, None, subresource=""), list)
    for subresource in ("", "status"):
        assert isinstance(row.validate(new, old, subresource=subresource), list)
    assert len(table.row(row.columns, new, datetime(2026, 1, 1, tzinfo=UTC), "None")["cells"]) == len(row.columns)
    assert row.field_names <= row.fields(new).keys()


def test_complaints_are_bounded_in_number_and_length() -> None:
    long = "k" * 1_000_000
    inner = ",".join(['"a": 1'] * 600)
    complaints = decode.duplicates(b'{"%s": {%s}}' % (long.encode(), inner.encode()))
    assert len(complaints) == decode.MAX_COMPLAINTS
    assert max(map(len, complaints)) < decode.MAX_PATH + 30
    complaints = decode.duplicates(b'{"%s": {"x": [[{%s}]]}}' % (b"k" * 200, inner.encode()))
    assert complaints[0] == f'duplicate field "{"k" * 200}.x[0][0].a"'
    unknown = decode.normalize("core.v1.ConfigMap", {long: 1} | {f"u{n}": 1 for n in range(600)})
    assert len(unknown) == decode.MAX_COMPLAINTS
    assert max(map(len, unknown)) < decode.MAX_PATH + 30
