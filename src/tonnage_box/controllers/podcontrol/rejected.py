"""Pods that a kubelet does not admit: their controllers replace them later and later.

Kubernetes' DaemonSet controller does so. Its ReplicaSet and StatefulSet controllers do not wait, and make such pods
without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock, time_of
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.api.pod_fields import REJECTED

_FIRST, _MOST = 1.0, 900.0
"""Seconds, as of the DaemonSet controller."""


def is_rejected(pod: Pod) -> bool:
    """Whether a kubelet has not let it begin."""
    return pod.status.phase == "Failed" and pod.status.message.startswith(REJECTED)


def replacement_wait(pods: Iterable[Pod], wanted: int, now: float) -> float:
    """Seconds until as many pods as are wanted may be made again; 0 at once. It doubles with each round of them."""
    made = [time_of(pod.metadata.creation_timestamp) or now for pod in pods if is_rejected(pod)]
    rounds = -(-len(made) // max(wanted, 1))
    return max(max(made) + min(_FIRST * 2 ** min(rounds - 1, 20), _MOST) - now, 0.0) if made else 0.0


class Replacements:
    """When pods that have a name of their own may be replaced. Keys are those of such a pod."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoff = Backoff(initial=_FIRST, maximum=_MOST)
        self._due: dict[str, float] = {}

    def split(self, pods: Sequence[Pod]) -> tuple[list[Pod], float | None]:
        """Pods of some that may be deleted now; seconds until the next may."""
        now, free, waits = self._clock.time(), [], []
        for pod in pods:
            if is_rejected(pod) and (left := self._due.get(pod.key, 0.0) - now) > 0:
                waits.append(left)
                continue
            if is_rejected(pod):
                self._due[pod.key] = now + self._backoff.next(pod.key)
            free.append(pod)
        return free, min(waits, default=None)

    def forget(self, pods: Iterable[Pod]) -> None:
        """Pods that began: when the next one of that name is rejected, it is replaced at once."""
        for key in [pod.key for pod in pods if pod.status.phase == "Running" and pod.key in self._due]:
            del self._due[key]
            self._backoff.forget(key)
