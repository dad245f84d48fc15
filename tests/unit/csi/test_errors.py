"""The table of codes and what a caller reads off an error."""

from __future__ import annotations

import pytest

from tonnage.base import errors
from tonnage.csi.errors import Code, CsiError, expected, label_of, to_csi


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.InvalidError("x"), 3),
        (errors.UnsupportedError("x"), 3),
        (errors.NotFoundError("x"), 5),
        (errors.AlreadyExistsError("x"), 6),
        (errors.ExhaustedError("x"), 8),
        (errors.PreconditionError("x"), 9),
        (errors.BusyError("x"), 10),
        (errors.OutOfRangeError("x"), 11),
        (errors.HostError("x"), 13),
        (errors.UnavailableError("x"), 14),
    ],
)
def test_each_error_of_the_domain_has_its_code(failure: errors.TonnageError, code: int) -> None:
    told = to_csi(failure)
    assert (told.code.value, told.message) == (code, "x")
    assert expected(failure)


def test_anything_else_is_internal_and_keeps_its_text() -> None:
    told = to_csi(ZeroDivisionError("by zero"))
    assert told.code is Code.INTERNAL
    assert told.message == "ZeroDivisionError: by zero"
    assert not expected(ZeroDivisionError())


def test_an_error_reads_as_in_go() -> None:
    error = CsiError(Code.RESOURCE_EXHAUSTED, "no room")
    assert str(error) == "rpc error: code = ResourceExhausted desc = no room"
    assert [label_of(Code.OK), label_of(Code.CANCELLED), label_of(Code.NOT_FOUND)] == ["OK", "Canceled", "NotFound"]


def test_what_is_final_and_what_is_not() -> None:
    background = {code for code in Code if not CsiError(code, "").final}
    assert background == {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED}
    uncertain = {code for code in Code if not CsiError(code, "").node_final}
    assert uncertain == background | {Code.RESOURCE_EXHAUSTED}
    assert [code for code in Code if CsiError(code, "").infeasible] == [Code.INVALID_ARGUMENT]
    assert [code for code in Code if CsiError(code, "").exhausted] == [Code.RESOURCE_EXHAUSTED]
