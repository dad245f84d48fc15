"""What the API server stores, every controller can read: whatever the schema accepts, the kind's Struct takes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec import inspect
from tests.examples import examples
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.schema.test_decode import values
from tests.unit.kubernetes.api.forms import SAMPLES, alternatives

from tonnage.base.errors import ApiError
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.client.client import Client
from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.schema import decode, schemas

Obj = dict[str, Any]
ROWS = {row.kind.plural: row for row in RESOURCES.values() if row.kind in kinds.ALL}
REVISIONS = "/apis/apps/v1/namespaces/default/controllerrevisions"
TEXT, NUMBER = inspect.StrType, inspect.IntType
SCALARS: dict[str, tuple[type[inspect.Type], ...]] = {
    "str": (TEXT,),
    "int": (NUMBER,),
    "long": (NUMBER,),
    "number": (inspect.FloatType,),
    "bool": (inspect.BoolType,),
    "bytes": (TEXT,),
    "quantity": (TEXT,),
    "intstr": (NUMBER, TEXT),
    "time": (TEXT,),
    "microtime": (TEXT,),
}
ODD: tuple[Any, ...] = (
    *SAMPLES,
    None,
    False,
    0,
    -1,
    2**31 - 1,
    -(2**31),
    2**63 - 1,
    -(2**63),
    2**64,
    2**70,
    10**30,
    1e300,
    "",
    "\0",
    "\U0001f389",
    "1e3",
    "-1Gi",
    "YQ==",
    "0001-01-01T00:00:00+01:00",
    "9999-12-31T23:59:59-01:00",
    "2026-01-01T00:00:00.123456789+02:00",
    [],
    [None],
    [[None]],
    {},
    {"": None},
    {"a": {"b": None}},
    [{"a": None}],
)
VALIDATED = {"controllerrevisions": {"data"}}
"""Fields of any type, of which validation takes only an object: as in Kubernetes."""


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.plural)
def test_every_field_of_a_struct_takes_what_the_schema_does(kind: Kind[Any]) -> None:
    schema = schemas.struct(RESOURCES[kind.key].schema_name)
    assert [
        fault
        for fault in misfits(schemas.Type("struct", None, schema.name), inspect.type_info(kind.struct), "")
        if fault.split(":")[0] not in VALIDATED.get(kind.plural, ())
    ] == []


def misfits(kind: schemas.Type, form: inspect.Type, path: str) -> Iterator[str]:
    """Places where a value that fits the schema would not fit the Struct."""
    forms = {type(one): one for one in alternatives(form)}
    if inspect.AnyType in forms:
        return
    if kind.word in SCALARS:
        if not set(SCALARS[kind.word]) <= forms.keys():
            yield f"{path}: {kind.word} is read as {form}"
    elif kind.item is not None:
        found: Any = forms.get(inspect.ListType if kind.word == "[]" else inspect.DictType)
        if found is None:
            yield f"{path}: {kind.word} is read as {form}"
        else:
            yield from misfits(kind.item, found.item_type if kind.word == "[]" else found.value_type, f"{path}[]")
    elif kind.word == "struct":
        if isinstance(found := forms.get(inspect.DictType), inspect.DictType):
            if not isinstance(found.value_type, inspect.AnyType):
                yield f"{path}: a struct is read as {form}"
            return
        if not isinstance(found := forms.get(inspect.StructType), inspect.StructType):
            yield f"{path}: a struct is read as {form}"
            return
        fields = schemas.struct(kind.struct).fields
        for field in found.fields:
            inner = f"{path}.{field.encode_name}".removeprefix(".")
            if field.encode_name in fields:  # a Struct may serve several kinds
                yield from misfits(fields[field.encode_name].type, field.type, inner)
    else:
        yield f"{path}: {kind.word} is read as {form}"


def places(
    kind: schemas.Type, form: inspect.Type | None, seen: set[Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields of structs that were not seen yet; 0 for the element of a list, "k" for a value of a map.

    form: what reads the value, None where nothing does. The same struct may be read by different Structs.
    """
    if path:
        yield path
    forms: dict[type, Any] = {type(one): one for one in alternatives(form)} if form is not None else {}
    if kind.item is not None:
        if kind.word == "[]":
            found = forms.get(inspect.ListType)
            yield from places(kind.item, found and found.item_type, seen, (*path, 0))
        else:
            found = forms.get(inspect.DictType)
            yield from places(kind.item, found and found.value_type, seen, (*path, "k"))
    elif kind.word == "struct":
        found = forms.get(inspect.StructType)
        pair = (kind.struct, found and found.cls)
        if pair in seen:
            return
        seen.add(pair)
        read = {field.encode_name: field.type for field in found.fields} if found else {}
        for field in schemas.struct(kind.struct).fields.values():
            yield from places(field.type, read.get(field.name), seen, (*path, field.name))


def _places() -> dict[str, list[tuple[Any, ...]]]:
    """Kind -> the paths of its fields, of structs that no kind before it has."""
    seen: set[Any] = set()
    return {
        kind.key: list(
            places(schemas.Type("struct", None, RESOURCES[kind.key].schema_name), inspect.type_info(kind.struct), seen)
        )
        for kind in kinds.ALL
    }


PLACES = _places()


def stored(kind: Kind[Any], obj: Obj) -> Obj | None:
    """The object as it is stored, None where it is rejected."""
    row = ROWS[kind.plural]
    try:
        decode.normalize(row.schema_name, obj)
    except ApiError:
        return None
    fields = VALIDATED.get(kind.plural, set())
    if fields & obj.keys():
        obj = {"metadata": {"name": "x"}, **obj}
        if fields & {fault.field for fault in row.validate(copy.deepcopy(obj), None, subresource="")}:
            return None
    return obj


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.plural)
def test_every_odd_value_is_rejected_or_can_be_read(kind: Kind[Any]) -> None:
    taken = 0
    for path in PLACES[kind.key]:
        for value in ODD:
            obj: Any = copy.deepcopy(value)
            for step in reversed(path):
                obj = [obj] if step == 0 else {step: obj}
            if (found := stored(kind, obj)) is not None:
                kind.decode(msgspec.json.encode(found))
                taken += 1
    assert taken


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.plural)
@examples(10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_fits_the_schema_can_be_read(kind: Kind[Any], data: st.DataObject) -> None:
    obj = data.draw(values(schemas.Type("struct", None, RESOURCES[kind.key].schema_name), 6))
    if (found := stored(kind, obj)) is not None:
        assert isinstance(kind.decode(msgspec.json.encode(found)), kind.struct)


def test_an_event_of_the_new_group_is_stored_as_one_of_the_old() -> None:
    row = RESOURCES["events.k8s.io/events"]
    for path in places(schemas.Type("struct", None, row.schema_name), inspect.type_info(kinds.EVENTS.struct), set()):
        for value in ODD:
            obj: Any = copy.deepcopy(value)
            for step in reversed(path):
                obj = [obj] if step == 0 else {step: obj}
            try:
                decode.normalize(row.schema_name, obj)
            except ApiError:
                continue
            assert isinstance(kinds.EVENTS.decode(msgspec.json.encode(row.inward(obj))), kinds.EVENTS.struct)


def _is_long(value: Any) -> bool:
    """Whether it is a number that no body may hold."""
    return isinstance(value, int) and value >= 2**63


@pytest.mark.parametrize(
    "data",
    [value for value in ODD if value is not None and not isinstance(value, dict) and not _is_long(value)],
    ids=repr,
)
async def test_data_of_a_revision_must_be_an_object(api: Api, data: Any) -> None:
    """In the words of kube-apiserver 1.36, which takes no other since 1.34."""
    said = await api.create(REVISIONS, {"metadata": {"name": "x"}, "data": data, "revision": 1}, want=422)
    assert said["message"] == (
        'ControllerRevision.apps "x" is invalid: data: Required value: data must be a valid JSON object'
    )


async def test_a_revision_without_data_is_rejected(api: Api) -> None:
    for body in ({}, {"data": None}):
        said = await api.create(REVISIONS, {"metadata": {"name": "x"}, **body}, want=422)
        assert said["message"] == 'ControllerRevision.apps "x" is invalid: data: Required value: data is mandatory'


async def test_data_of_a_revision_never_becomes_something_else(api: Api) -> None:
    await api.create(REVISIONS, {"metadata": {"name": "x"}, "data": {}})
    for data in ([1], None, {"a": None}):
        patch = [{"op": "replace", "path": "/data", "value": data}]
        answer = await api.send("PATCH", f"{REVISIONS}/x", patch, content_type="application/json-patch+json")
        assert answer.status in (200, 422)
    found = await Client(api.transport).list(kinds.CONTROLLER_REVISIONS)
    assert [revision.data for revision in found.items] == [{}]
