"""core/v1 ToleratesTaint."""

from __future__ import annotations

import pytest

from tonnage.kubernetes.api.core import Taint
from tonnage.kubernetes.api.pods import Toleration
from tonnage.kubernetes.api.taints import tolerates

TAINT = Taint(key="disk", value="slow", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        (Toleration(key="disk", value="slow", effect="NoSchedule"), True),
        (Toleration(key="disk", operator="Equal", value="slow"), True),
        (Toleration(key="disk", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key="disk", value="fast"), False),
        (Toleration(key="other", operator="Exists"), False),
        (Toleration(key="disk", operator="Exists", effect="NoExecute"), False),
        (Toleration(value="slow"), False),
    ],
)
def test_one_toleration(toleration: Toleration, is_tolerated: bool) -> None:
    assert tolerates([toleration], TAINT) is is_tolerated


def test_one_of_several_is_enough_and_none_is_not() -> None:
    assert tolerates([Toleration(key="other", operator="Exists"), Toleration(operator="Exists")], TAINT)
    assert not tolerates([], TAINT)
