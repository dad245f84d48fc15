"""State of one probe, against a model that looks at all answers at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tonnage.kubernetes.api.pods import Container
from tonnage_box.kubelet.probes.probe_state import FINAL, INITIAL, ProbeKind, ProbeResult, ProbeSpec, ProbeState

ANSWERS = st.lists(st.sampled_from([ProbeResult.SUCCESS, ProbeResult.FAILURE]), max_size=40)


def _model(spec: ProbeSpec, answers: list[ProbeResult]) -> ProbeResult:
    """The last answer that came often enough in a row, up to the first after which nobody asks."""
    result = INITIAL[spec.kind]
    for end in range(1, len(answers) + 1):
        if (spec.kind, result) in FINAL:
            return result
        for answer, wanted in ((ProbeResult.SUCCESS, spec.successes), (ProbeResult.FAILURE, spec.failures)):
            if end >= wanted and all(a is answer for a in answers[end - wanted : end]):
                result = answer
    return result


@given(st.sampled_from(ProbeKind), st.integers(1, 4), st.integers(1, 4), ANSWERS)
def test_results_are_those_of_the_model(
    kind: ProbeKind, successes: int, failures: int, answers: list[ProbeResult]
) -> None:
    spec = ProbeSpec(kind, {}, successes=successes, failures=failures)
    state = ProbeState(spec, INITIAL[kind])
    changes = [state.answer(answer) for answer in answers]
    assert state.result is _model(spec, answers)
    assert state.is_final is ((kind, state.result) in FINAL)
    assert any(changes) or state.result is INITIAL[kind]


def test_reads_all_fields_and_the_defaults() -> None:
    raw = {
        "exec": {"command": ["true"]},
        "initialDelaySeconds": 3,
        "periodSeconds": 5,
        "timeoutSeconds": 2,
        "successThreshold": 4,
        "failureThreshold": 6,
        "terminationGracePeriodSeconds": 0,
    }
    found = ProbeSpec.of(Container(name="c", readiness_probe=raw, startup_probe={"tcpSocket": {"port": 1}}))
    assert [spec.kind for spec in found] == [ProbeKind.STARTUP, ProbeKind.READINESS]
    startup, readiness = found
    assert (startup.delay, startup.period, startup.timeout, startup.failures, startup.grace) == (0, 10, 1, 3, None)
    assert (readiness.delay, readiness.period, readiness.timeout) == (3, 5, 2)
    assert (readiness.successes, readiness.failures, readiness.grace) == (4, 6, 0)


def test_words_of_events() -> None:
    assert [kind.word for kind in ProbeKind] == ["Liveness", "Readiness", "Startup"]
