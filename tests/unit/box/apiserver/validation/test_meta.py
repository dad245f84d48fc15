from __future__ import annotations

from typing import Any

import pytest

from tonnage_box.apiserver.validation import meta
from tonnage_box.apiserver.validation.field_errors import Faults

Obj = dict[str, Any]


@pytest.mark.parametrize(
    ("rule", "name", "said"),
    [
        pytest.param(meta.dns_subdomain, "a.b-c", [], id="subdomain"),
        pytest.param(
            meta.dns_subdomain,
            "A_b",
            [
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
                "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
                r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ],
            id="subdomain with capitals",
        ),
        pytest.param(meta.dns_subdomain, "a" * 254, ["must be no more than 253 characters"], id="long subdomain"),
        pytest.param(
            meta.dns_label,
            "a.b",
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
                "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ],
            id="label with a dot",
        ),
        pytest.param(meta.dns_label, "a" * 64, ["must be no more than 63 characters"], id="long label"),
        pytest.param(meta.qualified_name, "example.com/MyName_1", [], id="qualified name"),
        pytest.param(meta.qualified_name, "/x", ["prefix part must be non-empty"], id="empty prefix"),
        pytest.param(
            meta.qualified_name,
            "-x",
            [
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ],
            id="leading dash",
        ),
        pytest.param(meta.label_value, "", [], id="empty label value"),
        pytest.param(
            meta.label_value,
            "a b",
            [
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
                "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
                "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ],
            id="label value with a space",
        ),
    ],
)
def test_names(rule: meta.Namer, name: str, said: list[str]) -> None:
    assert list(rule(name)) == said


def check(new: Obj, old: Obj | None = None) -> list[str]:
    faults = Faults()
    meta.metadata(faults, {"metadata": new}, old=None if old is None else {"metadata": old})
    return [f"{c.field}: {c.message}" for c in faults]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        pytest.param({}, "metadata.name: Required value: name or generateName is required", id="no name"),
        pytest.param(
            {"name": "x", "annotations": {"a": "b" * (256 << 10)}},
            "metadata.annotations: Too long: may not be more than 262144 bytes",
            id="annotations too long",
        ),
        pytest.param(
            {"name": "x", "finalizers": ["mine"]},
            'metadata.finalizers: Invalid value: "mine": name is neither a standard finalizer name nor is it fully '
            "qualified",
            id="finalizer without a domain",
        ),
        pytest.param(
            {"name": "x", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]},
            'metadata.ownerReferences[0].uid: Invalid value: "": must not be empty',
            id="owner without uid",
        ),
    ],
)
def test_metadata_faults(new: Obj, said: str) -> None:
    assert said in check(new)


def test_two_controllers_are_one_too_many() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "uid": "u", "controller": True}
    (fault,) = check({"name": "x", "ownerReferences": [owner | {"name": "a"}, owner | {"name": "b"}]})
    assert fault.startswith("metadata.ownerReferences: Invalid value")
    assert fault.endswith('Found "true" in references for Pod/a and Pod/b')


def test_an_object_that_is_being_deleted_gets_no_new_finalizers() -> None:
    old = {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    (fault,) = check(old | {"finalizers": ["a.b/c"]}, old)
    assert fault == (
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new "
        'finalizers []string{"a.b/c"}'
    )


def test_identity_does_not_change() -> None:
    assert check({"name": "x", "uid": "b"}, {"name": "x", "uid": "a"}) == [
        'metadata.uid: Invalid value: "b": field is immutable'
    ]


def test_generate_name_may_end_with_a_dash() -> None:
    assert check({"name": "web-x2fgh", "generateName": "web-"}) == []
