"""The choice of victims, against trying all of them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import hypothesis.strategies as st
from hypothesis import given

from tonnage.kubernetes.api.meta import LabelSelector, ObjectMeta
from tonnage.kubernetes.api.pods import Pod, PodSpec, PodStatus
from tonnage.kubernetes.api.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from tonnage.scheduler.preemption.victims import (
    Budget,
    PreemptionCandidate,
    best,
    choose,
    compile_budgets,
    importance,
    split,
)

_TIMES = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", None)


def pod(name: str, priority: int = 0, started: str | None = _TIMES[0], app: str = "") -> Pod:
    labels = {"app": app} if app else {}
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, labels=labels),
        spec=PodSpec(priority=priority),
        status=PodStatus(start_time=started),
    )


def budget(app: str, allowed: int, *, namespace: str = "default", disrupted: Sequence[str] = ()) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=app, namespace=namespace),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": app})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed, disrupted_pods=dict.fromkeys(disrupted, "")),
    )


@dataclass
class Node:
    """Amounts of two things: what pods give back, and what is wanted above what is free."""

    gives: dict[str, tuple[int, int]]
    wanted: tuple[int, int]
    gone: set[str] = field(default_factory=set)

    def take(self, one: Pod) -> None:
        self.gone.add(one.metadata.uid)

    def put_back(self, one: Pod) -> None:
        self.gone.discard(one.metadata.uid)

    def fits(self) -> bool:
        return all(sum(self.gives[uid][i] for uid in self.gone) >= self.wanted[i] for i in (0, 1))


def brute_force(pods: list[Pod], budgets: Sequence[Budget], node: Node) -> list[str] | None:
    """Of all sets of victims that help, the one that spares the most important pods; budgets before importance."""
    breaking, others = split(sorted(pods, key=importance), budgets)
    order = [*breaking, *others]
    helping = []
    for stays in product((True, False), repeat=len(order)):
        node.gone = {one.metadata.uid for one, stay in zip(order, stays, strict=True) if not stay}
        if node.fits():
            helping.append(stays)
    if not helping:
        return None
    chosen = max(helping)
    return [one.metadata.uid for one, stay in zip(order, chosen, strict=True) if not stay]


amounts = st.tuples(st.integers(0, 4), st.integers(0, 4))
pods_given = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(_TIMES), st.sampled_from(["", "a", "b"]), amounts), max_size=6
)


@given(pods_given, amounts, st.integers(0, 2), st.integers(0, 2))
def test_spares_whom_it_can(
    given: list[tuple[int, str | None, str, tuple[int, int]]], wanted: tuple[int, int], a: int, b: int
) -> None:
    pods = [pod(f"p{n}", priority, started, app) for n, (priority, started, app, _) in enumerate(given)]
    gives = {f"p{n}": amount for n, (_, _, _, amount) in enumerate(given)}
    budgets = compile_budgets([budget("a", a), budget("b", b)])
    expected = brute_force(pods, budgets, Node(gives, wanted))

    found = choose("node", pods, budgets, Node(gives, wanted))

    assert (sorted(p.metadata.uid for p in found.victims) if found else None) == (sorted(expected or []) or None)
    if found:
        breaking, _ = split(sorted(pods, key=importance), budgets)
        assert found.violations == sum(one in breaking for one in found.victims)


@given(pods_given, amounts)
def test_every_victim_is_needed(
    given: list[tuple[int, str | None, str, tuple[int, int]]], wanted: tuple[int, int]
) -> None:
    pods = [pod(f"p{n}", priority, started, app) for n, (priority, started, app, _) in enumerate(given)]
    node = Node({f"p{n}": amount for n, (_, _, _, amount) in enumerate(given)}, wanted)
    found = choose("node", pods, [], node)
    if found is None:
        return
    assert node.gone == {one.metadata.uid for one in found.victims}
    for one in found.victims:
        node.put_back(one)
        assert not node.fits()
        node.take(one)


def test_budgets_count_in_order_and_know_who_is_going() -> None:
    budgets = compile_budgets(
        [budget("a", 1, disrupted=["gone"]), budget("a", 0, namespace="other"), PodDisruptionBudget()]
    )
    pods = [pod("gone", app="a"), pod("first", app="a"), pod("second", app="a"), pod("free")]
    breaking, others = split(pods, budgets)
    assert [p.metadata.name for p in breaking] == ["second"]
    assert [p.metadata.name for p in others] == ["gone", "first", "free"]


def of(*victims: Pod, broken: int = 0) -> PreemptionCandidate:
    return PreemptionCandidate("-".join(one.metadata.name for one in victims), victims, broken)


def test_the_node_that_costs_least() -> None:
    one, two = pod("one", 1), pod("two", 2)
    late, early = pod("late", 2, _TIMES[1]), pod("early", 2, _TIMES[0])
    assert best([of(one, broken=1), of(two)]) == of(two)  # no broken budget
    assert best([of(two), of(one, one)]) == of(one, one)  # less important
    assert best([of(two, one), of(two, pod("zero", 0))]) == of(two, pod("zero", 0))  # less together
    assert best([of(two, one), of(two)]) == of(two)  # fewer
    assert best([of(early), of(late)]) == of(late)  # those that started last
    assert best([of(two), of(early)]) == of(two)  # the first
