"""Findings of checks."""

from __future__ import annotations

from tests.unit.tools.ops.doctor.broken import findings
from tests.unit.tools.ops.doctor.ward import Ward

from tonnage.tools.ops.doctor.finding import Finding, Level, fail, few, ok, warn


def test_a_healthy_installation(ward: Ward) -> None:
    ward.volume("v", "n1")
    found = findings(ward)

    assert {f.level for f in found} == {Level.OK}
    assert {f.check for f in found} == {
        *("api", "csidriver", "agents", "controller", "registration", "classes", "capacity", "claims", "volumes"),
    }


def test_each_severity() -> None:
    assert ok("c", "a", "t") == Finding("c", "a", Level.OK, "t")
    assert (warn("c", "a", "t", "do").level, fail("c", "a", "t", "do").level) == (Level.WARN, Level.FAIL)
    assert fail("c", "a", "t", "do").todo == "do"


def test_a_sentence_names_a_few() -> None:
    assert few([]) == ""
    assert few(["a", "b"], 2) == "a, b"
    assert few(["a", "b", "c"], 2) == "a, b and 1 more"
