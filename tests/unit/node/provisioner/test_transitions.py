"""The table of a claim's phases: complete, closed, and the only way by which a phase changes."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples
from tests.unit.node.provisioner.test_state import CREATION

from tonnage.base.transitions import ImpossibleTransitionError
from tonnage.csi.client.types import CreatedVolume
from tonnage.node.provisioner import state as machine
from tonnage.node.provisioner.state import CLAIM_TRANSITIONS, ClaimEvent, ClaimState, ClaimTable, Creation, Hold, Phase

FOLDER = Path(machine.__file__).parent
EVENTS = st.sampled_from(ClaimEvent)
UNDER_WAY = {Phase.CREATING, Phase.FILLING, Phase.CREATED, Phase.BINDING, Phase.BLOCKED}


def send(state: ClaimState, event: ClaimEvent) -> None:
    """The event by its named method, where it has one."""
    match event:
        case ClaimEvent.BEGIN:
            state.begin(dataclasses.replace(CREATION))
        case ClaimEvent.MADE:
            state.made(CreatedVolume("v", 1))
        case ClaimEvent.AWAY:
            state.go_away("elsewhere")
        case ClaimEvent.DRIVER_REJECTED:
            state.reject(Hold(0.0))
        case ClaimEvent.BIND_DONE:
            state.bound(30.0)
        case ClaimEvent.FORGET:
            state.forget()
        case _:
            state.happened(event)


class Claims(RuleBasedStateMachine):
    """Any events in any order, of one claim that others share a table with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ClaimTable()
        self.state, self.other = self.table.of("u-1"), self.table.of("u-2")
        self.is_volume_open = False

    @rule(event=EVENTS)
    def happen(self, event: ClaimEvent) -> None:
        before = dataclasses.replace(self.state)
        if not CLAIM_TRANSITIONS.allows(before.phase, event):
            with pytest.raises(ImpossibleTransitionError, match="claim u-1: "):
                send(self.state, event)
            assert self.state == before, "it is as it was"
            return
        send(self.state, event)
        if event in (ClaimEvent.MADE, ClaimEvent.FILL, ClaimEvent.OUTCOME_UNKNOWN):
            self.is_volume_open = True
        elif event in (ClaimEvent.DELIVERED, ClaimEvent.UNWANTED, ClaimEvent.FAILED, ClaimEvent.INFEASIBLE,
                       ClaimEvent.DRIVER_REJECTED) or event is ClaimEvent.NOT_CALLED:  # fmt: skip
            self.is_volume_open = False

    @rule(event=EVENTS)
    def happen_in_a_round(self, event: ClaimEvent) -> None:
        """What one claim cannot have does not stop the next one."""
        if event in (ClaimEvent.BEGIN, ClaimEvent.MADE):
            return
        is_possible, other = CLAIM_TRANSITIONS.allows(self.state.phase, event), self.other.phase
        if is_possible and self.state.is_creating:
            return  # only its own reconcile sends these
        self.table.happened(["u-1", "gone", "u-2"], event)
        if CLAIM_TRANSITIONS.allows(other, event):
            assert self.other.phase is CLAIM_TRANSITIONS.after(other, event, about="u-2")
        if is_possible:
            return
        with pytest.raises(ImpossibleTransitionError, match="claim u-1: "):
            self.state.check_fault()
        self.state.check_fault()

    @invariant()
    def a_creation_is_there_while_a_volume_may_be(self) -> None:
        assert (self.state.creation is not None) is self.state.is_creating
        assert self.state.is_creating or not self.is_volume_open
        volume = self.state.creation.volume if self.state.creation is not None else None
        assert (volume is not None) is (self.state.phase is Phase.CREATED)

    @invariant()
    def it_waits_for_capacity_only_where_nothing_is_under_way(self) -> None:
        assert not (self.state.is_held and self.state.is_settled)


TestClaims = Claims.TestCase
TestClaims.settings = examples(200, machine=True, stateful_step_count=40, deadline=None)


def test_each_phase_and_event_is_in_the_table_and_each_pair_once() -> None:
    pairs = [(state, row.event) for row in CLAIM_TRANSITIONS.rows for state in row.before]
    assert len(pairs) == len(set(pairs))
    assert {event for _, event in pairs} == set(ClaimEvent)
    assert {phase for phase, _ in pairs} == set(Phase)
    assert {row.after for row in CLAIM_TRANSITIONS.rows} - {None} == set(Phase)


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_is_reached_and_left_for_the_first_one(phase: Phase) -> None:
    assert _path(Phase.WAITING, phase), "it is reached"
    assert _path(phase, Phase.WAITING), "it is left"


def _path(start: Phase, end: Phase) -> bool:
    seen, todo = {start}, [start]
    while todo:
        now = todo.pop()
        found = {CLAIM_TRANSITIONS.after(now, e, about="") for e in ClaimEvent if CLAIM_TRANSITIONS.allows(now, e)}
        todo += found - seen
        seen |= found
    return end in seen


@pytest.mark.parametrize("phase", sorted(UNDER_WAY, key=str))
def test_nothing_that_others_decide_ends_what_is_under_way(phase: Phase) -> None:
    for event in machine._OF_ROUNDS:
        assert CLAIM_TRANSITIONS.after(phase, event, about="") is phase
    assert CLAIM_TRANSITIONS.after(phase, ClaimEvent.FORGET, about="") is phase


@given(st.sampled_from(Phase))
def test_a_sweep_and_a_creation_exclude_each_other(phase: Phase) -> None:
    if phase in UNDER_WAY - {Phase.BLOCKED}:
        assert not CLAIM_TRANSITIONS.allows(phase, ClaimEvent.BLOCK)
    if phase is Phase.BLOCKED:
        assert not CLAIM_TRANSITIONS.allows(phase, ClaimEvent.BEGIN)


def test_no_other_file_assigns_what_the_state_machine_has() -> None:
    fields = {f.name for kind in (ClaimState, Creation) for f in dataclasses.fields(kind)}
    others = [path for path in sorted(FOLDER.glob("*.py")) if path.name != "state.py"]
    nodes = [(path, node) for path in others for node in ast.walk(ast.parse(path.read_text()))]
    assert not [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path, node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in fields
    ]
