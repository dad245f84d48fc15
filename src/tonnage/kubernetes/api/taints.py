"""Taints of nodes and the tolerations of pods."""

from __future__ import annotations

from collections.abc import Iterable

from tonnage.kubernetes.api.core import Taint
from tonnage.kubernetes.api.pods import Toleration


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether one of the tolerations tolerates the taint (core/v1 ToleratesTaint)."""
    for toleration in tolerations:
        if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
            continue
        if toleration.operator == "Exists":
            return True
        if toleration.key and toleration.operator in ("", "Equal") and toleration.value == taint.value:
            return True
    return False
