"""Variables expand as Go's os.Expand does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.csi.inline.cert.makers import UID, pod

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.variables import KNOWN, expand


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$POD_NAME.$POD_NAMESPACE", "my-csi-app-x.sandbox"),
        ("${POD_UID}", UID),
        ("a${SERVICE_ACCOUNT_NAME}b", "adefaultb"),
        ("${}a", "a"),
        ("100%", "100%"),
    ],
)
def test_expanded(text: str, expanded: str) -> None:
    assert expand(text, pod()) == expanded


def test_unknown_ones_are_named() -> None:
    with pytest.raises(InvalidError) as raised:
        expand("$HOME.${PATH}", pod())
    known = "POD_NAME POD_NAMESPACE POD_UID SERVICE_ACCOUNT_NAME"
    assert str(raised.value) == f'undefined variable "HOME", undefined variable "PATH", known variables: [{known}]'


@given(st.text())
def test_any_text_is_expanded_or_rejected(text: str) -> None:
    try:
        expanded = expand(text, pod())
    except InvalidError:
        return
    assert (
        "$" not in expanded or text.endswith("$") or expanded != text or not any(f"${name}" in text for name in KNOWN)
    )
