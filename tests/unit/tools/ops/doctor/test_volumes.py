"""PersistentVolumes: healthy, and one thing broken at a time."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.tools.ops.doctor.broken import Broken, assert_found
from tests.unit.tools.ops.doctor.ward import NOW, Ward

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Event, PersistentVolumeClaim
from tonnage.tools.ops.doctor import volumes
from tonnage.tools.ops.doctor.finding import Level

FAIL, WARN = Level.FAIL, Level.WARN


BROKEN: tuple[Broken, ...] = (
    ("volumes", lambda w: w.volume("v", "gone"), WARN, "its node gone is gone", "replace-node"),
    ("volumes", lambda w: w.volume("v", ""), WARN, "no node affinity", "adopt"),
    ("volumes", lambda w: w.volume("v", "n1", phase="Failed"), FAIL, "its deletion failed", "describe pv v"),
    ("volumes", lambda w: w.volume("v", "n1", phase="Released"), WARN, "waits for deletion by node n1", "describe"),
    ("volumes", lambda w: w.volume("v", "n1", phase="Released", policy="Retain"), WARN, "stays because", "orphan"),
    (
        "volumes",
        lambda w: w.volume("v", "n1", phase="Released", policy="Retain", deletionTimestamp=rfc3339(NOW - 100)),
        WARN,
        "waits for deletion by node n1",
        "describe",
    ),
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


def test_a_node_whose_agent_deletes_nothing(ward: Ward) -> None:
    (node,) = [node for node in ward.view.nodes if node.metadata.name == "n1"]
    notes = {names.DELETIONS_STOPPED: "it wrote another mark"}
    stopped = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=notes))
    ward.view.nodes = [stopped if found is node else found for found in ward.view.nodes]
    (found,) = [finding for finding in volumes.check(ward.view) if finding.level is FAIL]
    assert found.about == "n1"
    assert "it wrote another mark" in found.text
    assert found.todo.endswith("kubectl annotate node n1 tonnage.dev/deletions-stopped-")


def _health(reason: str, uid: str, second: int) -> Event:
    about = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": uid}
    at = f"2026-01-01T00:00:{second:02}Z"
    body = {"involvedObject": about, "reason": reason, "message": "its image is gone", "lastTimestamp": at}
    return msgspec.convert({"metadata": {"name": f"e{second}"}, **body}, Event)


@pytest.mark.parametrize(
    ("reasons", "is_told"),
    [(["Abnormal"], True), (["Abnormal", "Normal"], False), (["Abnormal", "Normal", "Abnormal"], True), (["Normal"], False)],
)  # fmt: skip
def test_an_abnormal_volume_is_listed_until_its_agent_says_that_it_is_well(
    ward: Ward, reasons: list[str], *, is_told: bool
) -> None:
    body = {"metadata": {"name": "data", "namespace": "default", "uid": "u"}}
    ward.view.claims = [msgspec.convert(body, PersistentVolumeClaim)]
    told = [_health(f"VolumeCondition{word}", "u", second) for second, word in enumerate(reasons)]
    ward.view.health = [*reversed(told), _health("VolumeConditionAbnormal", "gone", 9)]
    found = [f for f in volumes.check(ward.view) if f.level is FAIL]
    assert [f.text.endswith("its image is gone") for f in found] == [True] * is_told
