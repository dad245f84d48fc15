"""Errors of volumeAttributes in the words of k8s.io/apimachinery (validation/field), as cert-manager/csi-driver has.

Used by the checks of attributes. A secret value is never in a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

_MOST = 120


def required(key: str, detail: str) -> str:
    """Describe a missing value."""
    return f"volumeAttributes.{key}: Required value: {detail}"


def invalid(key: str, value: str, detail: str) -> str:
    """Describe a bad value."""
    return f"volumeAttributes.{key}: Invalid value: {quote(value)}: {detail}"


def unsupported(key: str, value: str, values: Sequence[str]) -> str:
    """Describe a value that is none of those known."""
    known = ", ".join(map(quote, values))
    return f"volumeAttributes.{key}: Unsupported value: {quote(value)}: supported values: {known}"


def duplicate(key: str, value: str) -> str:
    """Describe a value that another key has, too."""
    return f"volumeAttributes.{key}: Duplicate value: {quote(value)}"


def aggregate(errors: Iterable[str]) -> str:
    """Join errors as Go's Aggregate does."""
    found = list(dict.fromkeys(errors))
    return found[0] if len(found) == 1 else f"[{', '.join(found)}]"


def quote(text: str) -> str:
    """Quote a user's text, shortened."""
    return json.dumps(text if len(text) <= _MOST else f"{text[:_MOST]}...", ensure_ascii=False)
