"""For any order of decisions, writes, publications, completions and restarts: no node is promised more than it has,
and once everything has settled nothing is rejected that fits. What is published comes late, is told twice, or is passed
over when something newer is there; of several objects any may come first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.examples import examples

from tonnage.kubernetes.api import names
from tonnage.scheduler.framework.plugin import Diagnosis, SchedulingDecision

CLASSES = ("late", "other")
CPU = 4


@dataclass
class Claim:
    """A claim, and where its life is. node: where it was decided to go."""

    name: str
    storage_class: str
    size: int
    node: str = ""
    sent: int = 0
    made: bool = False
    inherited: bool = False


@dataclass
class Pod:
    name: str
    cpu: int
    claims: list[Claim]
    node: str = ""


@dataclass
class Agent:
    """A node's agent: what it saw in order, what it holds."""

    size: int
    inbox: list[Claim] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    counted: int = 0

    @property
    def free(self) -> int:
        return self.size - sum(self.held.values())


class Promises(RuleBasedStateMachine):
    """One scheduler, a few nodes with one pool and two classes each."""

    make_world: Callable[[], Any]

    @initialize(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3))
    def begin(self, sizes: list[int]) -> None:
        self.agents = {f"node-{n}": Agent(size) for n, size in enumerate(sizes)}
        self.pods: dict[str, Pod] = {}
        self.answers: list[tuple[str, int]] = []
        self.made = 0
        self.wires: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.world = self.make_world()
        for name in CLASSES:
            self.world.storage_class(name)
        for node in self.agents:
            self.world.node(node, cpu=str(CPU))
            for name in CLASSES:
                self.publish(node, name)
                self.arrive(node, name)

    def claims(self) -> list[Claim]:
        return [claim for pod in self.pods.values() for claim in pod.claims]

    def show(self, claim: Claim, **marks: Any) -> int:
        """Write the claim into the caches; returns its resourceVersion."""
        notes = {names.SELECTED_NODE: claim.node} if claim.sent else {}
        if claim.made:
            notes[names.BIND_COMPLETED] = "yes"
            marks["volumeName"] = f"pv-{claim.name}"
        spec = {"annotations": notes, "storageClassName": claim.storage_class, **marks}
        return int(self.world.claim(claim.name, f"{claim.size}Gi", **spec).metadata.resource_version)

    def publish(self, node: str, storage_class: str) -> None:
        """Write an object: free, counted. The scheduler hears of it later."""
        agent = self.agents[node]
        self.wires.setdefault((node, storage_class), []).append((agent.free, agent.counted))

    def arrive(self, node: str, storage_class: str, upto: int = -1) -> None:
        """The scheduler hears of one of the writes, and never of those before; the last stays there to be told anew."""
        wire = self.wires[node, storage_class]
        del wire[: upto % len(wire)]
        free, counted = wire[0]
        self.world.capacity(node, f"{free}Gi", storage_class=storage_class, counted=counted, pool="default")
        if len(wire) > 1:
            del wire[0]

    def arrive_all(self, *nodes: str) -> None:
        """All is up to date."""
        for node in nodes:
            for name in CLASSES:
                self.publish(node, name)
                self.arrive(node, name)

    # What may happen

    @rule(cpu=st.integers(0, 2), sizes=st.lists(st.tuples(st.sampled_from(CLASSES), st.integers(1, 6)), max_size=3))
    def new_pod(self, cpu: int, sizes: list[tuple[str, int]]) -> None:
        self.made += 1
        name = f"p{self.made}"
        claims = [Claim(f"{name}-v{n}", c, size) for n, (c, size) in enumerate(sizes)]
        self.pods[name] = Pod(name, cpu, claims)
        for claim in claims:
            self.show(claim)

    def waiting(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if not pod.node]

    def decide(self, pod: Pod) -> SchedulingDecision | Diagnosis:
        outcome: SchedulingDecision | Diagnosis = self.world.decide(self.pod_object(pod))
        return outcome

    def pod_object(self, pod: Pod) -> Any:
        requests = {"cpu": str(pod.cpu)} if pod.cpu else {}
        return self.world.pod(pod.name, requests=requests, claims=[c.name for c in pod.claims])

    @precondition(lambda self: bool(self.waiting()))
    @rule(data=st.data())
    def schedule(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(self.waiting()))
        outcome = self.world.place(self.pod_object(pod))
        if outcome in self.agents:
            pod.node = outcome
            for claim in pod.claims:
                assert claim.node in ("", outcome), "a claim that was sent stays where it is"
                claim.node = outcome

    @precondition(lambda self: any(c.node and not c.sent for c in self.claims()))
    @rule(data=st.data(), answered=st.booleans())
    def send(self, data: st.DataObject, answered: bool) -> None:
        self.do_send(data.draw(st.sampled_from([c for c in self.claims() if c.node and not c.sent])), answered)

    def do_send(self, claim: Claim, answered: bool) -> None:
        claim.sent = 1
        claim.sent = self.show(claim)
        self.agents[claim.node].inbox.append(claim)
        if answered:
            self.world.cluster.published.confirm(f"uid-{claim.name}", claim.sent)
        else:
            self.answers.append((f"uid-{claim.name}", claim.sent))

    @precondition(lambda self: bool(self.answers))
    @rule()
    def answer(self) -> None:
        self.world.cluster.published.confirm(*self.answers.pop(0))

    @precondition(lambda self: any(a.inbox for a in self.agents.values()))
    @rule(data=st.data())
    def see(self, data: st.DataObject) -> None:
        self.do_see(data.draw(st.sampled_from([a for a in self.agents.values() if a.inbox])))

    def do_see(self, agent: Agent) -> None:
        claim = agent.inbox.pop(0)
        agent.held[claim.name] = claim.size
        agent.counted = max(agent.counted, claim.sent)

    @rule(data=st.data(), storage_class=st.sampled_from(CLASSES))
    def published(self, data: st.DataObject, storage_class: str) -> None:
        self.publish(data.draw(st.sampled_from(sorted(self.agents))), storage_class)

    @rule(data=st.data())
    def heard(self, data: st.DataObject) -> None:
        node, storage_class = data.draw(st.sampled_from(sorted(self.wires)))
        self.arrive(node, storage_class, data.draw(st.integers(0, len(self.wires[node, storage_class]) - 1)))

    def makeable(self) -> list[Claim]:
        return [c for c in self.claims() if c.sent and not c.made and c.name in self.agents[c.node].held]

    @precondition(lambda self: bool(self.makeable()))
    @rule(data=st.data())
    def make(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.makeable()))
        if claim.inherited:
            self.arrive_all(claim.node)  # agents publish first; who was there all the time need not rely on it
        claim.made = True
        self.world.volume(f"pv-{claim.name}", node=claim.node, phase="Bound", claim=claim.name)
        self.show(claim)

    @precondition(lambda self: bool(self.pods))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        pod = self.pods.pop(data.draw(st.sampled_from(sorted(self.pods))))
        self.world.cluster.pod_lifted(f"uid-{pod.name}")
        for claim in pod.claims:
            self.world.objects.claims.remove(f"default/{claim.name}")
            for agent in self.agents.values():
                agent.held.pop(claim.name, None)
                agent.inbox = [c for c in agent.inbox if c is not claim]

    @precondition(lambda self: bool(self.makeable()))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """An agent sends all claims of a pod back that it has not made; the scheduler starts again with that pod."""
        claim = data.draw(st.sampled_from(self.makeable()))
        pod = next(p for p in self.pods.values() if claim in p.claims)
        if any(c.made or not c.sent or c.name not in self.agents[c.node].held for c in pod.claims):
            return
        for claim in pod.claims:
            del self.agents[claim.node].held[claim.name]
            claim.node, claim.sent = "", 0
            self.show(claim)
        pod.node = ""
        self.world.cluster.pod_lifted(f"uid-{pod.name}")

    @rule()
    def restart(self) -> None:
        """The scheduler is killed; all it knows is what the API server has. Agents publish before it is back."""
        self.arrive_all(*self.agents)
        old, self.world = self.world, self.make_world()
        self.world._versions = old._versions
        self.answers.clear()
        for name in CLASSES:
            self.world.storage_class(name)
        for pod in self.pods.values():
            bound = bool(pod.node) and all(c.made for c in pod.claims)
            if bound:
                self.world.cluster.pod_placed(old_pod(self.pod_object(pod), pod.node))
            else:
                pod.node = ""
            for claim in pod.claims:
                claim.inherited = bool(claim.sent)
                if not claim.sent:
                    claim.node = ""
        for cache, before in (
            (self.world.objects.claims, old.objects.claims),
            (self.world.nodes, old.nodes),
            (self.world.objects.volumes, old.objects.volumes),
            (self.world.capacities, old.capacities),
        ):
            for obj in before:
                cache.put(obj)

    # What must hold

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        for node, agent in getattr(self, "agents", {}).items():
            promised = sum(c.size for c in self.claims() if c.node == node)
            assert promised <= agent.size, f"{promised} of {agent.size} on {node}"
            cpu = sum(p.cpu for p in self.pods.values() if p.node == node)
            assert cpu <= CPU

    def teardown(self) -> None:
        """Let all that is under way arrive; then whatever is rejected really does not fit."""
        if not hasattr(self, "agents"):
            return
        for claim in self.claims():
            if claim.node and not claim.sent:
                self.do_send(claim, answered=True)
        while self.answers:
            self.answer()
        for node, agent in self.agents.items():
            while agent.inbox:
                self.do_see(agent)
            self.arrive_all(node)
        for claim in self.makeable():
            claim.made = True
            self.world.volume(f"pv-{claim.name}", node=claim.node, phase="Bound", claim=claim.name)
            self.show(claim)
        assert self.world.cluster.published.outstanding() == 0
        for pod in self.waiting():
            assert isinstance(self.decide(pod), SchedulingDecision) == self.fits(pod), pod

    def fits(self, pod: Pod) -> bool:
        pinned = {c.node for c in pod.claims if c.node}
        needed = sum(c.size for c in pod.claims if not c.node)
        return any(
            agent.free >= needed
            and pinned <= {node}
            and CPU - sum(p.cpu for p in self.pods.values() if p.node == node) >= pod.cpu
            for node, agent in self.agents.items()
        )


def old_pod(pod: Any, node: str) -> Any:
    """The pod as it is when bound to a node."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


@pytest.mark.hypothesis
def test_promises(make_world: Callable[[], Any]) -> None:
    machine = type("Bound", (Promises,), {"make_world": staticmethod(make_world)})
    run_state_machine_as_test(
        machine,
        settings=examples(
            60, machine=True, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("nodes", [1, 10])
def test_exact_fit(make_world: Callable[[], Any], nodes: int) -> None:
    """Twenty claims of 5Gi for each node of 100Gi: all go somewhere, not one more."""
    world = make_world()
    world.storage_class()
    for number in range(nodes):
        world.node(f"node-{number}")
        world.capacity(f"node-{number}", "100Gi", counted=0)
    for number in range(20 * nodes + 1):
        world.claim(f"c{number}", "5Gi")
    placed = [world.place(world.pod(f"p{n}", claims=[f"c{n}"])) for n in range(20 * nodes + 1)]

    assert sorted(placed.count(f"node-{n}") for n in range(nodes)) == [20] * nodes
    assert placed[-1] == f"0/{nodes} nodes are available: {nodes} node(s) did not have enough free storage."
