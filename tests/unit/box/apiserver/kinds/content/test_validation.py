"""Validation of contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Faults = Callable[..., list[str]]
CONTENTS = "tonnage.dev/contents"
HEX = "ab" * 32


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"folder": {"name": "models"}}, ""),
        ({"url": {"url": "https://h/x", "sha256": HEX, "unpack": "tar"}}, ""),
        ({}, "spec: Invalid value: []: exactly one of image, url, s3 and folder must be set"),
        ({"url": {"url": "https://h/x", "sha256": ""}}, "spec.url.sha256: Required value"),
        ({"url": {"url": "ftp://h/x", "sha256": HEX}}, "spec.url.url: Invalid value: \"ftp://h/x\": want http://"),
        ({"s3": {"endpoint": "https://h", "bucket": "buk"}}, "exactly one of key and prefix must be set"),
    ],
)  # fmt: skip
def test_one_form_with_sensible_fields(faults: Faults, spec: dict[str, Any], words: str) -> None:
    found = faults(CONTENTS, {"metadata": {"name": "x", "namespace": "ns"}, "spec": spec})
    assert (words in found[0]) if words else (found == [])
