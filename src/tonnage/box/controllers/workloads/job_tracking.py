"""Job tracking: counts each of a Job's pods exactly once, across crashes (KEP-2307). Pure.

A Job's pod has a finalizer until it is counted. Ended pods are added to status.uncountedTerminatedPods (one write),
then
lose their finalizer (a write each), then are added to the counters (the next write). Indexed Jobs store the indexes of
their completed pods instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tonnage.api import names
from tonnage.api.number import whole
from tonnage.api.pods import Pod
from tonnage.api.workloads import Job, Uncounted

INDEXED = "Indexed"


def read_indexes(text: str, completions: int) -> set[int]:
    """`1,3-5` -> 1, 3, 4, 5, those below completions. Parts that are no numbers, or out of order, are skipped."""
    found: set[int] = set()
    after = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = whole(first), whole(last or first)
        if start is not None and end is not None:
            after, start = min(end + 1, completions), max(start, after)
            found.update(range(start, after))
    return found


def write_indexes(indexes: Iterable[int]) -> str:
    """1, 3, 4, 5 -> `1,3-5`."""
    runs: list[tuple[int, int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return ",".join(str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)


def index_of(pod: Pod) -> int | None:
    """A pod's completion index."""
    text = pod.metadata.annotations.get(names.COMPLETION_INDEX, "")
    return whole(text)


def is_tracked(pod: Pod) -> bool:
    """Whether it is yet to be counted."""
    return names.JOB_TRACKING in pod.metadata.finalizers


def has_succeeded(pod: Pod) -> bool:
    """Whether it ended well."""
    return pod.status.phase == "Succeeded"


def has_failed(pod: Pod, *, only_ended: bool) -> bool:
    """Whether it ended badly; a pod that is being deleted is as good as failed, unless only_ended."""
    if pod.status.phase == "Failed":
        return True
    return pod.metadata.deleting and not only_ended and not has_succeeded(pod)


@dataclass(frozen=True)
class JobCount:
    """Ended pods so far. uncounted: pods whose finalizers may be removed once this is written."""

    succeeded: int
    failed: int
    uncounted: Uncounted
    completed: frozenset[int] = frozenset()
    indexed: bool = False

    @property
    def all_succeeded(self) -> int:
        """Succeeded pods, counted or not."""
        return self.succeeded + len(self.uncounted.succeeded)

    @property
    def all_failed(self) -> int:
        """Failed pods, counted or not."""
        return self.failed + len(self.uncounted.failed)


def count(job: Job, pods: Sequence[Pod]) -> JobCount:
    """The next state of the count, from the Job's status and its pods."""
    tracked = {pod.metadata.uid: pod for pod in pods if is_tracked(pod)}
    status = job.status
    before = status.uncounted_terminated_pods
    only_ended = job.spec.pod_replacement_policy == "Failed"
    failed = [uid for uid in before.failed if uid in tracked]
    failed += [
        uid for uid, pod in tracked.items() if uid not in before.failed and has_failed(pod, only_ended=only_ended)
    ]
    failures = status.failed + sum(uid not in tracked for uid in before.failed)
    ended_well = [pod for pod in tracked.values() if has_succeeded(pod)]
    if job.spec.completion_mode == INDEXED:
        completions = job.spec.completions or 0
        done = read_indexes(status.completed_indexes, completions)
        done |= {n for pod in ended_well if (n := index_of(pod)) is not None and n < completions}
        return JobCount(len(done), failures, Uncounted(failed=failed), frozenset(done), indexed=True)
    succeeded = [uid for uid in before.succeeded if uid in tracked]
    succeeded += [pod.metadata.uid for pod in ended_well if pod.metadata.uid not in before.succeeded]
    successes = status.succeeded + sum(uid not in tracked for uid in before.succeeded)
    return JobCount(successes, failures, Uncounted(succeeded=succeeded, failed=failed))


def countable(job: Job, found: JobCount, pods: Sequence[Pod]) -> list[Pod]:
    """Pods whose finalizer may go, now that found is written: those that it names, or whose index it has."""
    named = {*found.uncounted.succeeded, *found.uncounted.failed}
    return [
        pod for pod in pods if is_tracked(pod) and (pod.metadata.uid in named or (found.indexed and has_succeeded(pod)))
    ]
