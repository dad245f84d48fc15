"""Null is absent in every field of every Struct, at any depth; a wrong type names its field."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from tests.examples import examples
from tests.unit.kubernetes.api.forms import ENTRY, allows_none, at, paths, structs, values_of, written, wrong

from tonnage.kubernetes.api.decode import convert, decode
from tonnage.kubernetes.api.meta import Object
from tonnage.kubernetes.api.storage import CSINode

STRUCTS = structs()


def test_the_structs_are_found() -> None:
    assert {"Pod", "CSINode", "ControllerRevision", "VolumeSnapshotContent", "PodAffinityTerm"} <= {
        struct.__name__ for struct in STRUCTS
    }


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_field_may_be_missing(struct: type[Object]) -> None:
    assert decode(b"{}", struct) == struct()


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_null_is_absent_in_every_place(struct: type[Object]) -> None:
    for path, form in paths(inspect.type_info(struct)):
        found = decode(json.dumps(at(path, None)).encode(), struct)
        # Without the null, what holds it is empty: an element that is null is an element all the same.
        if path[-1] in (0, ENTRY) or allows_none(form):
            continue
        assert found == decode(json.dumps(at(path[:-1], {})).encode(), struct), written(path)


@pytest.mark.slow
@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_a_wrong_type_names_its_place(struct: type[Object]) -> None:
    for path, form in paths(inspect.type_info(struct)):
        for value in wrong(form):
            data = at(path, value)
            with pytest.raises(msgspec.ValidationError) as said:
                decode(json.dumps(data).encode(), struct)
            assert str(said.value).endswith(f"`$.{written(path)}`"), str(said.value)
            with pytest.raises(msgspec.ValidationError):
                convert(data, struct)


@pytest.mark.slow
@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
@examples(10)
@given(data=st.data())
def test_nulls_anywhere_are_read_as_if_they_were_absent(struct: type[Object], data: st.DataObject) -> None:
    dirty, clean = data.draw(values_of(struct))
    before = copy.deepcopy(dirty)
    wanted = msgspec.convert(clean, struct)
    assert decode(msgspec.json.encode(dirty), struct) == wanted
    assert convert(dirty, struct) == wanted
    assert dirty == before


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        ('{"drivers": null}', []),
        ('{"drivers": [{"name": "nfs", "nodeID": "n", "topologyKeys": null}]}', [("nfs", [])]),
        (
            '{"drivers": [null, {"name": "a", "topologyKeys": [null, "k"]}], "later": null}',
            [("", []), ("a", ["", "k"])],
        ),
        ("null", []),
    ],
)
def test_what_kube_apiserver_writes_of_drivers_without_topology(spec: str, keys: list[Any]) -> None:
    found = decode(f'{{"metadata": {{"name": "n"}}, "spec": {spec}}}'.encode(), CSINode)
    assert [(driver.name, driver.topology_keys) for driver in found.spec.drivers] == keys


def test_null_keeps_its_meaning_where_a_field_may_be_none() -> None:
    data = (
        b'{"spec": {"drivers": [{"allocatable": null, "topologyKeys": null}]}, "metadata": {"deletionTimestamp": null}}'
    )
    found = decode(data, CSINode)
    assert found.spec.drivers[0].allocatable is None
    assert found.metadata.deletion_timestamp is None
