"""Policies: chosen by name."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError
from tonnage_box.simulate.policy import POLICIES, policies


def test_policies_by_name() -> None:
    assert [p.name for p in policies(["most-free,untracked", "most-free"])] == ["most-free", "untracked"]
    assert [p.name for p in policies([])] == ["least-allocated"]
    with pytest.raises(InvalidError, match="there is no policy 'best'; there are least-allocated"):
        policies(["best"])


def test_only_one_does_not_subtract_assumed_claims() -> None:
    assert [name for name, policy in POLICIES.items() if not policy.tracked] == ["untracked"]
