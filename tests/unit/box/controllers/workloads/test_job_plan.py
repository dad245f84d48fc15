"""Jobs: every pod counted once, and what follows from the numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.pods import ContainerState, ContainerStatus, Pod, PodStatus
from tonnage.kubernetes.api.workloads import Job
from tonnage_box.controllers.workloads import job as jobs
from tonnage_box.controllers.workloads.job import (
    count,
    countable,
    index_of,
    is_tracked,
    read_indexes,
    write_indexes,
)

NOW = 1_800_000_000.0


def job(status: dict[str, Any] | None = None, *, policy: str = "Never", **spec: Any) -> Job:
    template = {"spec": {"restartPolicy": policy, "containers": []}}
    spec = {"template": template, "parallelism": 1, "completions": 1, **spec}
    return msgspec.convert({"metadata": {"name": "j"}, "spec": spec, "status": status or {}}, Job)


def pod(
    name: str,
    phase: str = "Running",
    *,
    index: int | None = None,
    tracked: bool = True,
    going: bool = False,
    ended: float = 0.0,
    restarts: int = 0,
) -> Pod:
    notes = {} if index is None else {names.COMPLETION_INDEX: str(index)}
    meta = ObjectMeta(
        name=name,
        uid=name,
        annotations=notes,
        finalizers=[names.JOB_TRACKING] if tracked else [],
        deletion_timestamp=rfc3339(NOW) if going else None,
    )
    state = ContainerState(terminated={"finishedAt": rfc3339(ended)}) if ended else ContainerState()
    container = ContainerStatus(name="main", restart_count=restarts, state=state)
    return Pod(metadata=meta, status=PodStatus(phase=phase, container_statuses=[container]))


def planned(one: Job, pods: list[Pod]) -> jobs.JobPlan:
    return jobs.plan(one, pods, count(one, pods), NOW)


@given(st.sets(st.integers(0, 60)))
def test_indexes_are_written_and_read(indexes: set[int]) -> None:
    assert read_indexes(write_indexes(indexes), completions=61) == indexes


@pytest.mark.parametrize("text", ["9" * 5000, "0-2147483646," * 1000, "-", "5-3", "x,3-y,4-", "٣", "1-" + "9" * 5000])
def test_completed_indexes_that_a_user_wrote(text: str) -> None:
    assert read_indexes(text, completions=4) in (set(), {0, 1, 2, 3}, {3})


def test_indexes_as_kubernetes_writes_them() -> None:
    assert write_indexes([1, 3, 4, 5, 7, 8]) == "1,3-5,7,8"
    assert write_indexes([]) == ""


@pytest.mark.parametrize(
    ("one", "pods", "create"),
    [
        pytest.param(job(), [], [None], id="one"),
        pytest.param(job(parallelism=3, completions=2), [], [None] * 2, id="no more than are needed"),
        pytest.param(job(parallelism=2, completions=5), [pod("a")], [None], id="no more than at a time"),
        pytest.param(job({"succeeded": 4}, parallelism=3, completions=5), [], [None], id="the last one"),
        pytest.param(job(parallelism=2, completions=None), [], [None] * 2, id="a work queue"),
        pytest.param(job({"succeeded": 1}, parallelism=2, completions=None), [pod("a")], [], id="which is empty"),
        pytest.param(job(suspend=True), [], [], id="suspended"),
        pytest.param(job(), [pod("a", going=True)], [None], id="a replacement while the old one goes"),
        pytest.param(job(podReplacementPolicy="Failed"), [pod("a", going=True)], [], id="or after it"),
        pytest.param(
            job({"completedIndexes": "0,2"}, completionMode="Indexed", completions=4, parallelism=4),
            [pod("a", index=1)],
            [3],
            id="indexes that are missing",
        ),
    ],
)
def test_pods_to_make(one: Job, pods: list[Pod], create: list[int | None]) -> None:
    todo = planned(one, pods)
    assert list(todo.create) == create
    assert not todo.drop
    assert todo.outcome is None


@pytest.mark.parametrize(
    ("one", "pods", "reason"),
    [
        pytest.param(job(), [pod("a", "Succeeded")], "CompletionsReached", id="done"),
        pytest.param(job({"succeeded": 1}), [], "CompletionsReached", id="done before"),
        pytest.param(job(completions=0), [], "CompletionsReached", id="nothing to do"),
        pytest.param(job(completions=None), [pod("a", "Succeeded"), pod("b")], None, id="the others may finish"),
        pytest.param(job(completions=None), [pod("a", "Succeeded")], "CompletionsReached", id="queue done"),
        pytest.param(job(backoffLimit=1), [pod("a", "Failed"), pod("b", "Failed")], "BackoffLimitExceeded", id="often"),
        pytest.param(job(backoffLimit=2), [pod("a", "Failed"), pod("b", "Failed")], None, id="not yet too often"),
        pytest.param(job(backoffLimit=3, policy="OnFailure"), [pod("a", restarts=3)], "BackoffLimitExceeded", id="in place"),
        pytest.param(
            job({"startTime": rfc3339(NOW - 9)}, activeDeadlineSeconds=9), [pod("a")], "DeadlineExceeded", id="late"
        ),
        pytest.param(job({"startTime": rfc3339(NOW - 9)}, activeDeadlineSeconds=10), [pod("a")], None, id="in time"),
    ],
)  # fmt: skip
def test_its_end(one: Job, pods: list[Pod], reason: str | None) -> None:
    todo = planned(one, pods)
    assert (todo.outcome[1] if todo.outcome else None) == reason
    if todo.outcome:
        assert not todo.create
        assert {p.metadata.name for p in (*todo.end, *todo.drop)} == {p.metadata.name for p in todo.active}


def test_after_failures_it_waits_longer_each_time() -> None:
    one = job(backoffLimit=9)
    failed = [pod(str(n), "Failed", ended=NOW - 5, tracked=False) for n in range(3)]
    assert [planned(one, failed[:n]).wait for n in (1, 2, 3)] == [5.0, 15.0, 35.0]
    assert planned(one, [pod("a", "Failed", ended=NOW - 11)]).create == [None]
    good = pod("b", "Succeeded", ended=NOW - 1)
    assert list(planned(job(completions=3, backoffLimit=9), [*failed, good]).create) == [None]


def test_too_many_go_uncounted() -> None:
    one = job(parallelism=1, completions=3)
    assert len(planned(one, [pod("a"), pod("b"), pod("c")]).drop) == 2
    one = job(parallelism=1, completions=3, completionMode="Indexed")
    dropped = planned(one, [pod("a", index=0), pod("b", index=2), pod("c", index=0)]).drop
    assert {p.metadata.name for p in dropped} == {"b", "c"}


def test_a_job_says_that_it_will_end_before_its_pods_have() -> None:
    one = job(backoffLimit=0)
    pods = [pod("a", "Failed"), pod("b")]
    found = count(one, pods)
    todo = jobs.plan(one, pods, found, NOW)
    status = jobs.status(one, todo, pods, found, NOW)
    assert [(c["type"], c["reason"]) for c in status["conditions"]] == [("FailureTarget", "BackoffLimitExceeded")]
    one = job(status | {"failed": 2, "uncountedTerminatedPods": {}}, backoffLimit=0)
    over = [pod("a", "Failed", tracked=False)]
    found = count(one, over)
    status = jobs.status(one, jobs.plan(one, over, found, NOW), over, found, NOW)
    assert [c["type"] for c in status["conditions"]] == ["FailureTarget", "Failed"]


class World:
    """A Job whose controller is killed between any two of its writes."""

    def __init__(self, one: Job) -> None:
        self.job, self.pods, self.made = one, dict[str, Pod](), 0

    def look(self, stop: int) -> None:
        """One look, of which only the first `stop` writes happen."""
        pods = list(self.pods.values())
        found = count(self.job, pods)
        todo = jobs.plan(self.job, pods, found, NOW)
        writes: list[Any] = [lambda: self.write(jobs.status(self.job, todo, pods, found, NOW))]
        writes += [lambda p=p: self.release(p) for p in countable(self.job, found, pods)]
        writes += [lambda p=p: self.release(p) for p in todo.drop]
        writes += [lambda p=p: self.remove(p) for p in (*todo.drop, *todo.end)]
        writes += [lambda i=i: self.create(i) for i in todo.create]
        for write in writes[:stop]:
            write()

    def write(self, status: dict[str, Any]) -> None:
        self.job = msgspec.structs.replace(self.job, status=msgspec.convert(status, type(self.job.status)))

    def release(self, one: Pod) -> None:
        old = self.pods.get(one.metadata.uid)
        if old is not None:
            meta = msgspec.structs.replace(old.metadata, finalizers=[])
            self.pods[one.metadata.uid] = msgspec.structs.replace(old, metadata=meta)
            self.reap(one.metadata.uid)

    def remove(self, one: Pod) -> None:
        old = self.pods.get(one.metadata.uid)
        if old is not None:
            meta = msgspec.structs.replace(old.metadata, deletion_timestamp=rfc3339(NOW))
            self.pods[one.metadata.uid] = msgspec.structs.replace(old, metadata=meta)

    def create(self, index: int | None) -> None:
        self.made += 1
        self.pods[f"p{self.made}"] = pod(f"p{self.made}", index=index)

    def end(self, uid: str, phase: str) -> None:
        old = self.pods[uid]
        if not old.terminated:
            phase = "Failed" if old.metadata.deleting else phase
            self.pods[uid] = msgspec.structs.replace(old, status=PodStatus(phase=phase))
        self.reap(uid)

    def reap(self, uid: str) -> None:
        """A deleted pod without finalizers goes when its containers have ended."""
        old = self.pods[uid]
        if old.metadata.deleting and old.terminated and not is_tracked(old):
            del self.pods[uid]


@given(data=st.data(), indexed=st.booleans(), completions=st.integers(1, 4), parallelism=st.integers(1, 4))
def test_each_pod_is_counted_once_whenever_it_is_killed(
    data: st.DataObject, indexed: bool, completions: int, parallelism: int
) -> None:
    mode = "Indexed" if indexed else "NonIndexed"
    world = World(job(completions=completions, parallelism=parallelism, completionMode=mode, backoffLimit=100))
    good, done = 0, set[int | None]()

    def end_one(uid: str, phase: str) -> None:
        nonlocal good
        one = world.pods[uid]
        if phase == "Succeeded" and is_tracked(one) and not one.metadata.deleting:
            good += 1
            done.add(index_of(one))
        world.end(uid, phase)

    for _ in range(25):
        world.look(data.draw(st.integers(0, 8), "writes"))
        running = sorted(uid for uid, p in world.pods.items() if not p.terminated)
        assert len([u for u in running if not world.pods[u].metadata.deleting]) <= parallelism
        if running:
            end_one(
                data.draw(st.sampled_from(running), "ends"), data.draw(st.sampled_from(["Succeeded", "Failed"]), "as")
            )
    for _ in range(30):  # nobody is killed any more, and all ends well
        world.look(99)
        for uid in [uid for uid, p in world.pods.items() if not p.terminated]:
            end_one(uid, "Succeeded")
    finished = jobs.finished(world.job)
    assert finished is not None
    assert finished.type == "Complete"
    assert world.job.status.succeeded == (len(done) if indexed else good)
    assert not any(is_tracked(p) for p in world.pods.values())
