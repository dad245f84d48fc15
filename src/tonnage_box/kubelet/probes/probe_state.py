"""State of one probe of one container (Kubernetes' kubelet/prober/worker). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tonnage.kubernetes.api.pods import Container


class ProbeKind(Enum):
    """The three probes of a container; the value is the name of the field."""

    LIVENESS = "livenessProbe"
    READINESS = "readinessProbe"
    STARTUP = "startupProbe"

    @property
    def word(self) -> str:
        """How Events name it: Liveness."""
        return self.name.capitalize()


class ProbeResult(Enum):
    """What is known of a container. UNKNOWN: nothing yet."""

    UNKNOWN = "unknown"
    SUCCESS = "success"
    FAILURE = "failure"


INITIAL = {
    ProbeKind.LIVENESS: ProbeResult.SUCCESS,
    ProbeKind.READINESS: ProbeResult.FAILURE,
    ProbeKind.STARTUP: ProbeResult.UNKNOWN,
}
"""Result of a new container, before the first answer."""
FINAL = frozenset(
    {
        (ProbeKind.LIVENESS, ProbeResult.FAILURE),
        (ProbeKind.STARTUP, ProbeResult.FAILURE),
        (ProbeKind.STARTUP, ProbeResult.SUCCESS),
    }
)
"""Results after which a container is not probed again: it is restarted, or it has started."""


@dataclass(frozen=True)
class ProbeSpec:
    """A probe as the pod asks for it; times in seconds. handler: the raw object, with one of the handlers in it."""

    kind: ProbeKind
    handler: Mapping[str, Any]
    delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    successes: int = 1
    failures: int = 3
    grace: float | None = None

    @classmethod
    def of(cls, container: Container) -> list[ProbeSpec]:
        """All probes of a container."""
        given = {
            ProbeKind.STARTUP: container.startup_probe,
            ProbeKind.LIVENESS: container.liveness_probe,
            ProbeKind.READINESS: container.readiness_probe,
        }
        return [cls._read(kind, raw) for kind, raw in given.items() if raw]

    @classmethod
    def _read(cls, kind: ProbeKind, raw: Mapping[str, Any]) -> ProbeSpec:
        grace = raw.get("terminationGracePeriodSeconds")
        return cls(
            kind,
            raw,
            float(raw.get("initialDelaySeconds") or 0),
            float(raw.get("periodSeconds") or 10),
            float(raw.get("timeoutSeconds") or 1),
            int(raw.get("successThreshold") or 1),
            int(raw.get("failureThreshold") or 3),
            None if grace is None else float(grace),
        )


@dataclass
class ProbeState:
    """One probe of one start of a container. result: what counts; it changes at the thresholds only."""

    spec: ProbeSpec
    result: ProbeResult
    last: ProbeResult = ProbeResult.UNKNOWN
    run: int = 0
    """How many answers in a row were `last`."""

    @property
    def is_final(self) -> bool:
        """Whether no more answers are wanted."""
        return (self.spec.kind, self.result) in FINAL

    def answer(self, answer: ProbeResult) -> bool:
        """Count an answer; whether the result has changed by it."""
        if self.is_final:
            return False
        self.run = self.run + 1 if answer is self.last else 1
        self.last = answer
        wanted = self.spec.successes if answer is ProbeResult.SUCCESS else self.spec.failures
        if self.run < wanted or answer is self.result:
            return False
        self.result = answer
        return True
