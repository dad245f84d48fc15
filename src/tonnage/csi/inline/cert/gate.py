"""What a pod waits for before its certificate is requested: `after: pod-ip`, `condition:TYPE`, `annotation:KEY`.

Used by the source, and by the check of attributes. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.pods import Pod

POD_IP, CONDITION, ANNOTATION = "pod-ip", "condition", "annotation"
WANTED = f"want {POD_IP}, {CONDITION}:TYPE[=STATUS] or {ANNOTATION}:KEY[=VALUE], parted by commas"


@dataclass(frozen=True)
class PodGate:
    """One thing to wait for. value: of the condition or annotation, "" for any value of an annotation."""

    kind: str
    name: str = ""
    value: str = ""

    def is_open(self, pod: Pod) -> bool:
        """Whether the pod has it."""
        if self.kind == POD_IP:
            return bool(pod.status.pod_ips)
        if self.kind == CONDITION:
            return any((one.type, one.status) == (self.name, self.value) for one in pod.status.conditions)
        found = pod.metadata.annotations.get(self.name)
        return found is not None and self.value in ("", found)

    def __str__(self) -> str:
        """The attribute's text."""
        value = f"={self.value}" if self.value else ""
        return f"{self.kind}:{self.name}{value}" if self.name else self.kind


def parse_gates(text: str) -> tuple[PodGate, ...]:
    """Return the gates of an attribute. Raises: InvalidError."""
    return tuple(_gate(part.strip()) for part in text.split(",")) if text else ()


def _gate(text: str) -> PodGate:
    if text == POD_IP:
        return PodGate(POD_IP)
    kind, _, rest = text.partition(":")
    name, _, value = rest.partition("=")
    if kind not in (CONDITION, ANNOTATION) or not name:
        raise InvalidError(WANTED)
    return PodGate(kind, name, value or ("True" if kind == CONDITION else ""))


def closed_gate(gates: tuple[PodGate, ...], pod: Pod) -> str:
    """Return the first gate that is not open, "" if all are."""
    return next((str(gate) for gate in gates if not gate.is_open(pod)), "")
