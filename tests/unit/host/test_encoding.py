"""Pods' text on its way to the kernel."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError
from tonnage.host.encoding import encode


def test_text_becomes_the_bytes_that_it_was() -> None:
    assert encode("grüße", "argument") == "grüße".encode()
    assert encode(b"\xff/x".decode("utf-8", "surrogateescape"), "path") == b"\xff/x"


@pytest.mark.parametrize(
    ("text", "why"), [("a\0--bind", "NUL byte at 1"), ("\ud800", "not valid Unicode at character 0")]
)
def test_what_cannot_be_passed_is_rejected_without_showing_it(text: str, why: str) -> None:
    with pytest.raises(InvalidError) as caught:
        encode(text, "variable PASSWORD")
    assert str(caught.value).startswith("variable PASSWORD ")
    assert why in str(caught.value)
    assert "--bind" not in str(caught.value)
