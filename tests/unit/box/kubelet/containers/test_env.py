"""Variables and command lines, with $(VAR) expanded."""

from __future__ import annotations

import pytest

from tonnage.api.pods import Container
from tonnage.box.kubelet.containers import env
from tonnage.errors import InvalidError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)$(B)", "x12"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(NO)", "$(NO)"),
        ("$A $ $(", "$A $ $("),
        ("", ""),
    ],
)
def test_expand(text: str, expected: str) -> None:
    assert env.expand(text, {"A": "1", "B": "2"}) == expected


def test_arguments_need_a_command() -> None:
    assert env.arguments(Container(command=["a", "$(X)"], args=["b"]), {"X": "y"}) == ["a", "y", "b"]
    with pytest.raises(InvalidError, match="has no command"):
        env.arguments(Container(name="c", args=["b"]), {})
