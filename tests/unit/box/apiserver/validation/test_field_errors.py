"""Field errors in the words of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tonnage.base.errors import FieldCause
from tonnage_box.apiserver.validation.field_errors import Faults, difference, items, shown

Obj = dict[str, Any]
OLD: Obj = {"name": "a", "size": 1}


def even(value: int) -> list[str]:
    return ["must be even"] if value % 2 else []


@pytest.mark.parametrize(
    ("fault", "message", "reason"),
    [
        pytest.param(lambda f: f.required("p"), "Required value", "Required", id="required"),
        pytest.param(lambda f: f.required("p", "say it"), "Required value: say it", "Required", id="with detail"),
        pytest.param(lambda f: f.invalid("p", "x", "bad"), 'Invalid value: "x": bad', "Invalid", id="invalid"),
        pytest.param(lambda f: f.forbidden("p", "no"), "Forbidden: no", "Forbidden", id="forbidden"),
        pytest.param(lambda f: f.unique("p", 1, {1}), "Duplicate value: 1", "Duplicate", id="duplicate"),
        pytest.param(lambda f: f.not_found("p", "v"), 'Not found: "v"', "NotFound", id="not found"),
        pytest.param(
            lambda f: f.one_of("p", None, ("A", "B")),
            'Unsupported value: "": supported values: "A", "B"',
            "NotSupported",
            id="not supported",
        ),
        pytest.param(lambda f: f.too_long("p", 9), "Too long: may not be more than 9 bytes", "TooLong", id="too long"),
        pytest.param(lambda f: f.check("p", 3, even), "Invalid value: 3: must be even", "Invalid", id="rule"),
        pytest.param(lambda f: f.name("p", 0, even), "Required value", "Required", id="rule of nothing"),
        pytest.param(lambda f: f.given("", {}, "p"), "Required value", "Required", id="field not given"),
        pytest.param(
            lambda f: f.amount("p", "-1Gi"),
            'Invalid value: "-1Gi": must be greater than or equal to 0',
            "Invalid",
            id="amount",
        ),
        pytest.param(
            lambda f: f.not_negative("", {"p": -1}, "p", "q"),
            "Invalid value: -1: must be greater than or equal to 0",
            "Invalid",
            id="negative",
        ),
        pytest.param(
            lambda f: f.in_range("p", 0, 1, 9),
            "Invalid value: 0: must be between 1 and 9, inclusive",
            "Invalid",
            id="range",
        ),
        pytest.param(
            lambda f: f.fixed("", {"p": 2, "q": 1}, {"p": 1, "q": 1}, "p", "q"),
            "Invalid value: 2: field is immutable",
            "Invalid",
            id="immutable",
        ),
    ],
)
def test_words(fault: Callable[[Faults], None], message: str, reason: str) -> None:
    faults = Faults()
    fault(faults)
    assert [FieldCause(c.field.lstrip("."), c.message, c.reason) for c in faults] == [
        FieldCause("p", message, f"FieldValue{reason}")
    ]


def test_what_is_right_is_no_fault() -> None:
    faults, seen = Faults(), set[int]()
    faults.unique("p", 1, seen)
    faults.one_of("p", "A", ("A", "B"))
    faults.check("p", 2, even)
    faults.name("p", 2, even)
    faults.given("", {"p": 1}, "p")
    faults.amount("p", "0")
    faults.in_range("p", None, 1, 9)
    faults.fixed("", OLD, OLD, "name")
    assert (faults, seen) == ([], {1})


def test_faults_move_below_another_field() -> None:
    inner, outer = Faults(), Faults()
    inner.required("spec.a")
    outer.moved(inner, "spec.", "spec.template.spec.")
    assert [cause.field for cause in outer] == ["spec.template.spec.a"]


def test_items_have_paths() -> None:
    assert list(items({"a": ["x", "y"]}, "a", "spec.")) == [("spec.a[0]", "x"), ("spec.a[1]", "y")]
    assert list(items({"a": None}, "a", "")) == []


def test_values_are_shown_as_go_does() -> None:
    assert [shown(value) for value in ("é", 1, None, {"a": [True]})] == ['"é"', "1", "null", '{"a":[true]}']


def test_a_difference_names_each_field() -> None:
    new: Obj = {"name": "b", "size": 1, "list": [1, 2]}
    assert difference(new, OLD | {"list": [1, 3]}) == '  list[1]: 3 -> 2\n  name: "a" -> "b"'
