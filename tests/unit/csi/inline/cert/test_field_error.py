"""Errors in the words of apimachinery."""

from __future__ import annotations

from tonnage.csi.inline.cert import field_error


def test_texts() -> None:
    assert field_error.aggregate(["a"]) == "a"
    assert field_error.aggregate(["a", "b", "a"]) == "[a, b]"
    assert field_error.quote('"') == '"\\""'
    assert len(field_error.quote("x" * 5000)) < 200
