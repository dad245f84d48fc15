"""StatefulSets as they come up, roll and shrink: one look after the other, whatever the pods do between."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import Condition, ObjectMeta
from tonnage.kubernetes.api.pods import Pod, PodStatus
from tonnage.kubernetes.api.workloads import StatefulSet
from tonnage_box.controllers.podcontrol.history import revision_of
from tonnage_box.controllers.podcontrol.pod_control import BURST
from tonnage_box.controllers.workloads.statefulset import (
    SetRevisions,
    ordinal,
    ordinals,
    plan,
    status,
)

READY = [Condition(type="Ready", status="True", last_transition_time="2026-01-01T00:00:00Z")]
NEW = SetRevisions("old", "new")


def stateful(**spec: Any) -> StatefulSet:
    made: dict[str, Any] = {"metadata": {"name": "db", "generation": 3}, "spec": {"replicas": 3, **spec}}
    return msgspec.convert(made, StatefulSet)


def pod(number: int, revision: str = "old", *, ready: bool = True, phase: str = "Running", going: bool = False) -> Pod:
    meta = ObjectMeta(
        name=f"db-{number}",
        uid=f"uid-{number}-{revision}",
        labels={names.CONTROLLER_REVISION_HASH: revision},
        deletion_timestamp="2026-01-01T00:00:00Z" if going else None,
    )
    return Pod(metadata=meta, status=PodStatus(phase=phase, conditions=READY if ready else []))


def shown(todo: Any) -> tuple[list[tuple[int, str]], list[str]]:
    return list(todo.create), [p.metadata.name for p in todo.delete]


@pytest.mark.parametrize(
    ("name", "number"),
    [("db-0", 0), ("db-12", 12), ("db-01", None), ("db-", None), ("other-1", None), ("db-x-1", None), ("db", None)],
)
def test_numbers_in_names(name: str, number: int | None) -> None:
    assert ordinal("db", name) == number


@pytest.mark.parametrize(
    ("spec", "pods", "create", "delete"),
    [
        pytest.param({}, [], [(0, "new")], [], id="the first one first"),
        pytest.param({}, [pod(0, ready=False)], [], [], id="the next waits for it"),
        pytest.param({}, [pod(0, "new")], [(1, "new")], [], id="then the next"),
        pytest.param({"podManagementPolicy": "Parallel"}, [], [(n, "new") for n in range(3)], [], id="parallel"),
        pytest.param({"ordinals": {"start": 5}}, [pod(5, "new")], [(6, "new")], [], id="numbers from 5"),
        pytest.param({}, [pod(0, phase="Failed", ready=False)], [], ["db-0"], id="a failed one is made anew"),
        pytest.param({}, [pod(0), pod(1), pod(2)], [], ["db-2"], id="an update begins at the top"),
        pytest.param({}, [pod(0), pod(1), pod(2, "new")], [], ["db-1"], id="and goes down"),
        pytest.param({}, [pod(0), pod(1), pod(2, "new", ready=False)], [], [], id="one by one"),
        pytest.param(
            {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}},
            [pod(0), pod(1), pod(2, "new")],
            [],
            [],
            id="down to the partition",
        ),
        pytest.param(
            {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}},
            [pod(1), pod(2, "new")],
            [(0, "old")],
            [],
            id="below it what is lost comes back as it was",
        ),
        pytest.param(
            {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}},
            [pod(0), pod(1), pod(2)],
            [],
            ["db-2", "db-1"],
            id="two at a time",
        ),
        pytest.param({"updateStrategy": {"type": "OnDelete"}}, [pod(0), pod(1), pod(2)], [], [], id="only by hand"),
        pytest.param(
            {"updateStrategy": {"type": "OnDelete"}}, [pod(0), pod(2)], [(1, "new")], [], id="then with what is new"
        ),
        pytest.param({"replicas": 1}, [pod(0), pod(1), pod(2)], [], ["db-2"], id="the last one goes first"),
        pytest.param({"replicas": 1}, [pod(0), pod(1), pod(2, going=True)], [], [], id="and the next when it has gone"),
        pytest.param(
            {"replicas": 0, "podManagementPolicy": "Parallel"},
            [pod(0), pod(1)],
            [],
            ["db-1", "db-0"],
            id="parallel goes at once",
        ),
        pytest.param({"minReadySeconds": 10}, [pod(0, "new")], [], [], id="ready is not yet available"),
    ],
)
def test_the_next_step(spec: dict[str, Any], pods: list[Pod], create: list[tuple[int, str]], delete: list[str]) -> None:
    now = 1767225605.0  # five seconds after the pods became ready
    assert shown(plan(stateful(**spec), pods, NEW, now)) == (create, delete)


def test_on_its_way_out_it_does_nothing() -> None:
    made = stateful()
    gone = msgspec.structs.replace(made, metadata=ObjectMeta(name="db", deletion_timestamp="2026-01-01T00:00:00Z"))
    assert shown(plan(gone, [], NEW, 0)) == ([], [])


class World:
    """Pods that do as they are told, in their own time."""

    def __init__(self, pods: list[Pod]) -> None:
        self.pods = {ordinal("db", p.metadata.name): p for p in pods}

    def step(self, made: StatefulSet) -> bool:
        todo = plan(made, list(self.pods.values()), NEW, 2e9)
        for number, revision in todo.create:
            assert number not in self.pods
            if made.spec.pod_management_policy == "OrderedReady":
                below = range(ordinals(made).start, number)
                assert all(self.well(n) for n in below)
                assert len(todo.create) == 1
            self.pods[number] = pod(number, revision, ready=False, phase="Pending")
        for one in todo.delete:
            going = ordinal("db", one.metadata.name)
            assert not one.metadata.deleting
            self.pods[going] = pod(going or 0, revision_of(one), ready=False, going=True)
        return bool(todo.create or todo.delete)

    def well(self, number: int | None) -> bool:
        found = self.pods.get(number)
        return found is not None and bool(found.status.conditions) and not found.metadata.deleting

    def progress(self, number: int | None) -> None:
        found = self.pods[number]
        if found.metadata.deleting:
            del self.pods[number]
        elif not found.status.conditions:
            self.pods[number] = pod(number or 0, revision_of(found))


@given(data=st.data(), policy=st.sampled_from(["OrderedReady", "Parallel"]), most=st.integers(1, 3))
def test_it_always_ends_well_and_never_misses_more_than_it_may(data: st.DataObject, policy: str, most: int) -> None:
    start, count = data.draw(st.integers(0, 2), "start"), data.draw(st.integers(0, 5), "replicas")
    partition = data.draw(st.integers(0, count), "partition")
    rolling = {"partition": partition, "maxUnavailable": most}
    made = stateful(
        replicas=count,
        ordinals={"start": start},
        podManagementPolicy=policy,
        updateStrategy={"type": "RollingUpdate", "rollingUpdate": rolling},
    )
    before = data.draw(st.lists(st.integers(0, 9), max_size=5, unique=True), "pods")
    world = World([pod(n, data.draw(st.sampled_from(["old", "new"]), "revision")) for n in before])
    wanted = ordinals(made)

    for _ in range(30):
        missing = sum(not world.well(n) for n in wanted)
        world.step(made)
        assert sum(not world.well(n) for n in wanted) <= max(missing, most)
        happens: bool = data.draw(st.booleans(), "something happens")
        if happens and world.pods:
            world.progress(data.draw(st.sampled_from(sorted(world.pods, key=str)), "to"))
    for _ in range(300):
        if not world.step(made):
            for number in list(world.pods):
                world.progress(number)
            if not world.step(made) and sorted(world.pods, key=str) == sorted(wanted, key=str):
                break
    assert set(world.pods) == set(wanted)
    updated = range(start + partition, start + count)
    assert all(revision_of(world.pods[n]) == "new" for n in updated)
    found = status(made, list(world.pods.values()), NEW, 2e9, None)
    assert found["readyReplicas"] == found["replicas"] == count
    assert found["currentRevision"] == ("new" if found["updatedReplicas"] == count else "old")


@pytest.mark.parametrize(
    ("policy", "pods", "pending"),
    [
        ("OrderedReady", [pod(0, phase="Pending"), pod(1, phase="Pending")], ["db-0"]),
        ("OrderedReady", [pod(0), pod(1, phase="Pending")], ["db-1"]),
        ("OrderedReady", [pod(0, ready=False), pod(1, phase="Pending")], []),
        ("Parallel", [pod(0, phase="Pending"), pod(1), pod(2, phase="Pending", going=True)], ["db-0", "db-2"]),
        ("Parallel", [pod(0, phase="Pending"), pod(7, phase="Pending")], ["db-0"]),
        ("Parallel", [pod(0, phase="Failed", ready=False), pod(1, phase="Succeeded")], []),
    ],
)
def test_pending_pods_may_lack_claims(policy: str, pods: list[Pod], pending: list[str]) -> None:
    todo = plan(stateful(podManagementPolicy=policy), pods, NEW, 1.8e9)
    assert [one.metadata.name for one in todo.pending] == pending


def test_a_step_of_a_set_without_end_is_small() -> None:
    """Steps are counted by what they do: each of them ends."""
    endless = stateful(replicas=2**31 - 1, podManagementPolicy="Parallel")
    todo = plan(endless, [], NEW, 1.8e9)
    assert [number for number, _ in todo.create] == [*range(BURST)]
    some = [pod(n, ready=n % 2 == 0) for n in (0, 1, 2, 700, 2**31 - 2)]
    todo = plan(endless, some, NEW, 1.8e9)
    assert [number for number, _ in todo.create] == [*range(3, BURST + 3)]
    in_order = plan(stateful(replicas=2**31 - 1), [pod(0)], NEW, 1.8e9)
    assert in_order.create == [(1, "new")]
    assert plan(stateful(replicas=0, podManagementPolicy="Parallel"), some, NEW, 1.8e9).create == []
