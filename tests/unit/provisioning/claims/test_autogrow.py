"""Rules of growth: what is read, when they are due, and how soon to look again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError
from tonnage.csi.client.types import VolumeUse
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.provisioning.claims import autogrow
from tonnage.provisioning.claims.autogrow import LATEST, SOONEST, AutogrowRule

MI, GI = 1 << 20, 1 << 30
RULE = AutogrowRule(10, 20, is_percent=True, most=100 * GI)


def _class(**parameters: str) -> StorageClass:
    return StorageClass(parameters={f"tonnage.dev/autogrow-{key}": value for key, value in parameters.items()})


def _claim(**annotations: str) -> PersistentVolumeClaim:
    notes = {f"tonnage.dev/autogrow-{key}": value for key, value in annotations.items()}
    return PersistentVolumeClaim(metadata=ObjectMeta(annotations=notes))


def _use(free: int, inodes_free: int = 0, inodes: int = 0) -> VolumeUse:
    return VolumeUse(100 * GI, 100 * GI - free, free, inodes, inodes - inodes_free, inodes_free)


def test_a_class_decides_and_a_claim_overrides() -> None:
    storage_class = _class(at="10%", by="5Gi", max="50Gi")
    assert autogrow.rule_of(_claim(), storage_class) == AutogrowRule(10, 5 * GI, is_percent=False, most=50 * GI)
    assert autogrow.rule_of(_claim(by="30%"), storage_class) == AutogrowRule(10, 30, is_percent=True, most=50 * GI)
    assert autogrow.rule_of(_claim(at="off"), storage_class) is None
    assert autogrow.rule_of(_claim(at="10%", max="1Ti"), _class()) is None, "a claim alone decides nothing"


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"at": "10", "max": "1Gi"}, "autogrow-at '10': want a percentage"),
        ({"at": "0%", "max": "1Gi"}, "1% to 90%"),
        ({"at": "95%", "max": "1Gi"}, "1% to 90%"),
        ({"at": "10%"}, "autogrow-max is missing"),
        ({"at": "10%", "max": "-1Gi"}, "want bytes"),
        ({"at": "10%", "max": "1Gi", "by": "0%"}, "1% to 100%"),
        ({"at": "10%", "max": "1Gi", "by": "much"}, "want bytes"),
        ({"max": "1Gi"}, "without tonnage.dev/autogrow-at"),
    ],
)
def test_what_cannot_be_read_is_rejected(parameters: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        autogrow.check(_class(**parameters).parameters)


@pytest.mark.parametrize(
    ("use", "is_due"),
    [
        (_use(10 * GI), False),
        (_use(10 * GI - 1), True),
        (_use(50 * GI, inodes_free=9, inodes=100), True),
        (_use(50 * GI, inodes_free=10, inodes=100), False),
        (VolumeUse(), False),
    ],
)
def test_it_is_due_below_the_free_share(use: VolumeUse, is_due: bool) -> None:
    assert RULE.is_due(use) is is_due


@given(st.integers(1, 200 * GI), st.integers(1, 100), st.booleans())
def test_each_step_is_larger_and_none_passes_the_maximum(size: int, by: int, is_percent: bool) -> None:
    rule = AutogrowRule(10, by if is_percent else by * MI, is_percent=is_percent, most=100 * GI)
    found = rule.next_size(size)
    assert found == size if size >= 100 * GI else size < found <= 100 * GI
    assert found in (size, 100 * GI) or found % MI == 0


@given(st.integers(0, 90 * GI), st.integers(0, 90 * GI), st.floats(0.1, 100))
def test_it_looks_again_before_the_rule_is_due_at_the_same_rate(before: int, spent: int, seconds: float) -> None:
    """Else a steady writer could fill the volume between two looks."""
    free = 10 * GI + before
    pause = RULE.pause(_use(free), _use(free + spent), seconds)
    assert SOONEST <= pause <= LATEST
    if pause > SOONEST and spent:
        assert free - spent / seconds * pause >= 10 * GI - MI


def test_a_volume_that_does_not_fill_is_looked_at_seldom() -> None:
    assert RULE.pause(_use(50 * GI), _use(50 * GI), 1.0) == LATEST
    assert RULE.pause(_use(50 * GI), None, 0.0) == SOONEST
