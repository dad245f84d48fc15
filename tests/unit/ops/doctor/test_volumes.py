"""PersistentVolumes: healthy, and one thing broken at a time."""

from __future__ import annotations

import pytest
from tests.unit.ops.doctor.broken import Broken, assert_found
from tests.unit.ops.doctor.conftest import NOW, Ward

from tonnage.aio.clock import rfc3339
from tonnage.ops.doctor import volumes
from tonnage.ops.doctor.finding import Level

FAIL, WARN = Level.FAIL, Level.WARN


BROKEN: tuple[Broken, ...] = (
    ("volumes", lambda w: w.volume("v", "gone"), WARN, "its node gone is gone", "replace-node"),
    ("volumes", lambda w: w.volume("v", ""), WARN, "no node affinity", "adopt"),
    ("volumes", lambda w: w.volume("v", "n1", phase="Failed"), FAIL, "its deletion failed", "describe pv v"),
    ("volumes", lambda w: w.volume("v", "n1", phase="Released"), WARN, "waits for deletion by node n1", "describe"),
    ("volumes", lambda w: w.volume("v", "n1", phase="Released", policy="Retain"), WARN, "stays because", "orphan"),
)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken[3])
def test_one_thing_is_broken(ward: Ward, broken: Broken) -> None:
    assert_found(ward, broken)


def test_a_released_volume_whose_agent_is_down(ward: Ward) -> None:
    ward.volume("v", "n1", phase="Released", deletionTimestamp=rfc3339(NOW - 100))
    ward.agent("n1", phase="Pending")

    (found,) = volumes.check(ward.view)
    assert found.level is FAIL
    assert found.text == "it waits for deletion by node n1, whose agent is not ready"


def test_one_that_is_removed_just_now(ward: Ward) -> None:
    ward.volume("v", "n1", phase="Released", deletionTimestamp=rfc3339(NOW - 2))

    assert {f.level for f in volumes.check(ward.view)} == {Level.OK}
