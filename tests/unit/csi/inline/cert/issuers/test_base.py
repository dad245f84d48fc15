"""Answers of issuers."""

from __future__ import annotations

import pytest

from tonnage.base.errors import UnavailableError
from tonnage.csi.inline.cert.issuers.base import split_roots


def test_answers_that_are_no_certificates() -> None:
    with pytest.raises(UnavailableError, match="want PEM"):
        split_roots(b"x")
