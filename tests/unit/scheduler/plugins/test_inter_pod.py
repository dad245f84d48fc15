"""Pod affinity, anti-affinity and topology spread: cases of Kubernetes' own tests, and a slow model that counts anew."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.pods import Pod
from tonnage.scheduler.framework.plugin import CycleState, RejectionCause
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.plugins import inter_pod

HOST = names.HOSTNAME_LABEL
Spec = dict[str, Any]
REQUIRED, PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))


def pod(world: World, name: str, app: str = "", *, namespace: str = "default", node: str = "", **spec: Any) -> Pod:
    """A pod with the label app; on a node, and counted there, if one is named."""
    if node:
        spec["nodeName"] = node
    body = {"spec": {"containers": [{"name": "main"}], **spec}}
    found: Pod = world.read(kinds.PODS, name, body, namespace, labels={"app": app} if app else {})
    if node:
        world.cluster.pod_placed(found)
    return found


def term(app: str | None, key: str = "zone", **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": None if app is None else {"matchLabels": {"app": app}}, **more}


def near(*terms: Any) -> dict[str, Any]:
    return {"podAffinity": {REQUIRED: list(terms)}}


def apart(*terms: Any) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def spread(app: str, key: str = "zone", skew: int = 1, when: str = "DoNotSchedule", **more: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"app": app}}
    return {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector, **more}


@pytest.fixture
def zones(world: World) -> World:
    """Zones a and b with two nodes each."""
    for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        world.node(name, labels={"zone": zone})
    return world


def fits(world: World, found: Pod) -> set[str]:
    """The nodes that do, as far as neighbours go."""
    columns = world.cluster.columns
    filters = world.cycle.inter_pod.filter(CycleState(compile_ask(found)))
    return {columns.names[slot] for slot in columns.live if not any(each.check(slot) for each in filters)}


def test_near_a_pod_that_is_there(zones: World) -> None:
    wants: Spec = {"affinity": near(term("db"))}
    assert fits(zones, pod(zones, "p", "web", **wants)) == set()
    pod(zones, "db", "db", node="a1")
    assert fits(zones, pod(zones, "p", "web", **wants)) == {"a1", "a2"}
    assert fits(zones, pod(zones, "p", "web", affinity=near(term("db", HOST)))) == {"a1"}
    zones.cluster.pod_lifted("uid-db")
    assert fits(zones, pod(zones, "p", "web", **wants)) == set()


def test_the_first_of_pods_that_want_to_be_together(zones: World) -> None:
    own: Spec = {"affinity": near(term("web"))}
    assert fits(zones, pod(zones, "p", "web", **own)) == {"a1", "a2", "b1", "b2"}
    assert fits(zones, pod(zones, "p", "web", affinity=near(term("web", "rack")))) == set()  # no node has that label
    pod(zones, "first", "web", node="b1")
    assert fits(zones, pod(zones, "p", "web", **own)) == {"b1", "b2"}


def test_one_pod_must_be_all_that_is_asked_for(zones: World) -> None:
    both = near(term("db"), {"topologyKey": "zone", "labelSelector": {"matchLabels": {"tier": "fast"}}})
    pod(zones, "db", "db", node="a1")
    assert fits(zones, pod(zones, "p", affinity=both)) == set()


def test_apart_and_the_other_way_round(zones: World) -> None:
    lonely: Spec = {"affinity": apart(term("web", HOST))}
    pod(zones, "first", "web", node="a1", **lonely)
    assert fits(zones, pod(zones, "p", "web", **lonely)) == {"a2", "b1", "b2"}
    assert fits(zones, pod(zones, "p", "web")) == {"a2", "b1", "b2"}  # it asks for nothing, the other does
    assert fits(zones, pod(zones, "p", "db", **lonely)) == {"a2", "b1", "b2"}
    assert fits(zones, pod(zones, "p", "db")) == {"a1", "a2", "b1", "b2"}
    zones.cluster.pod_lifted("uid-first")
    assert len(fits(zones, pod(zones, "p", "web"))) == 4


def test_namespaces(zones: World) -> None:
    pod(zones, "db", "db", namespace="other", node="a1")
    assert fits(zones, pod(zones, "p", affinity=near(term("db")))) == set()
    assert fits(zones, pod(zones, "p", affinity=near(term("db", namespaces=["other"])))) == {"a1", "a2"}
    assert fits(zones, pod(zones, "p", affinity=near(term("db", namespaceSelector={})))) == {"a1", "a2"}
    assert fits(zones, pod(zones, "p", affinity=near(term(None, namespaceSelector={})))) == set()


def test_match_label_keys(zones: World) -> None:
    pod(zones, "old", "v1", node="a1")
    same = {"topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": ["app"]}
    assert fits(zones, pod(zones, "p", "v2", affinity=apart(same))) == {"a1", "a2", "b1", "b2"}
    assert fits(zones, pod(zones, "p", "v1", affinity=apart(same))) == {"b1", "b2"}
    other = {"topologyKey": "zone", "labelSelector": {}, "mismatchLabelKeys": ["app"]}
    assert fits(zones, pod(zones, "p", "v2", affinity=apart(other))) == {"b1", "b2"}


def test_spread(zones: World) -> None:
    even: Spec = {"topologySpreadConstraints": [spread("web")]}
    pod(zones, "one", "web", node="a1")
    assert fits(zones, pod(zones, "p", "web", **even)) == {"b1", "b2"}
    assert len(fits(zones, pod(zones, "p", "db", **even))) == 4  # it is none of those that are counted
    two: Spec = {"topologySpreadConstraints": [spread("web", skew=2)]}
    assert len(fits(zones, pod(zones, "p", "web", **two))) == 4


def test_spread_counts_only_nodes_where_the_pod_may_go(zones: World) -> None:
    pod(zones, "one", "web", node="a1")
    even: Spec = {"topologySpreadConstraints": [spread("web")], "nodeSelector": {"zone": "a"}}
    assert fits(zones, pod(zones, "p", "web", **even)) >= {"a1", "a2"}  # zone b is out of reach: nothing is uneven
    ignored: Spec = {
        "topologySpreadConstraints": [spread("web", nodeAffinityPolicy="Ignore")],
        "nodeSelector": {"zone": "a"},
    }
    assert fits(zones, pod(zones, "p", "web", **ignored)) == {"b1", "b2"}


def test_spread_may_honor_taints(zones: World) -> None:
    pod(zones, "one", "web", node="a1")
    for name in ("b1", "b2"):
        zones.node(name, labels={"zone": "b"}, taints=[{"key": "x", "effect": "NoSchedule"}])
    assert fits(zones, pod(zones, "p", "web", topologySpreadConstraints=[spread("web")])) == {"b1", "b2"}
    honors: Spec = {"topologySpreadConstraints": [spread("web", nodeTaintsPolicy="Honor")]}
    assert fits(zones, pod(zones, "p", "web", **honors)) >= {"a1", "a2"}


def test_spread_over_a_minimum_of_places(zones: World) -> None:
    pod(zones, "one", "web", node="a1")
    pod(zones, "two", "web", node="b1")
    assert len(fits(zones, pod(zones, "p", "web", topologySpreadConstraints=[spread("web", minDomains=2)]))) == 4
    assert fits(zones, pod(zones, "p", "web", topologySpreadConstraints=[spread("web", minDomains=3)])) == set()


def test_pods_that_go_are_not_spread_against(zones: World) -> None:
    even: Spec = {"topologySpreadConstraints": [spread("web")]}
    there = pod(zones, "one", "web", node="a1")
    assert fits(zones, pod(zones, "p", "web", **even)) == {"b1", "b2"}
    meta = {"labels": there.metadata.labels, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    body = {"spec": {"containers": [{"name": "main"}], "nodeName": "a1"}}
    zones.cluster.pod_placed(zones.read(kinds.PODS, "one", body, "default", **meta))
    assert len(fits(zones, pod(zones, "p", "web", **even))) == 4


def test_a_node_without_the_label(zones: World) -> None:
    zones.node("c1")
    outcome = zones.decide(pod(zones, "p", "web", topologySpreadConstraints=[spread("web")], nodeSelector={HOST: "c1"}))
    assert f"1 {inter_pod.SPREAD_LABEL}" in outcome.message  # type: ignore[union-attr]


def test_ten_pods_are_spread_as_told(zones: World) -> None:
    even = [spread("web"), spread("web", HOST)]
    placed = Counter(zones.place(pod(zones, f"p{n}", "web", topologySpreadConstraints=even)) for n in range(8))
    assert placed == {"a1": 2, "a2": 2, "b1": 2, "b2": 2}


def test_wishes_decide_among_nodes_that_fit(zones: World) -> None:
    pod(zones, "db", "db", node="b2")
    wish = {"weight": 50, "podAffinityTerm": term("db", HOST)}
    assert zones.place(pod(zones, "p", "web", affinity={"podAffinity": {PREFERRED: [wish]}})) == "b2"
    assert zones.place(pod(zones, "q", "web", affinity={"podAntiAffinity": {PREFERRED: [wish]}})) != "b2"
    anyway = [spread("job", HOST, when="ScheduleAnyway")]
    placed = Counter(zones.place(pod(zones, f"p{n}", "job", topologySpreadConstraints=anyway)) for n in range(8))
    assert placed == {"a1": 2, "a2": 2, "b1": 2, "b2": 2}


def test_those_that_are_there_draw_others(zones: World) -> None:
    wish = {"weight": 10, "podAffinityTerm": term("web", HOST)}
    pod(zones, "db", "db", node="b1", affinity={"podAffinity": {PREFERRED: [wish]}})
    assert zones.place(pod(zones, "p", "web")) == "b1"


def rejected(world: World, found: Pod) -> Any:
    """Into the queue, out of it, and rejected for the sake of others; its entry."""
    world.queue.add(found.metadata.uid, compile_ask(found), world.now)
    entry = world.queue.pop()
    assert entry is not None
    outcome = world.cycle.decide(entry.ask)
    assert RejectionCause.NEIGHBOURS in outcome.causes  # type: ignore[union-attr]
    world.queue.reject(entry, outcome.causes, world.now)  # type: ignore[union-attr]
    return entry


def test_a_pod_wakes_when_the_one_comes_that_it_waits_for(zones: World) -> None:
    entry = rejected(zones, pod(zones, "p", "web", affinity=near(term("db"))))
    pod(zones, "other", "cache", node="a1")
    assert entry in zones.queue.waiting()
    pod(zones, "db", "db", node="a1")
    assert entry not in zones.queue.waiting()
    assert zones.place(entry.ask.pod) in ("a1", "a2")


def test_a_pod_wakes_when_the_one_goes_that_it_avoids(zones: World) -> None:
    for name in ("a1", "b1"):
        pod(zones, f"on-{name}", "web", node=name)
    entry = rejected(zones, pod(zones, "p", "web", affinity=apart(term("web"))))
    again = zones.decide(pod(zones, "q", "web", affinity=apart(term("web"))))  # remembered
    assert again.message == f"0/4 nodes are available: 4 {inter_pod.APART}."  # type: ignore[union-attr]
    zones.cluster.pod_lifted("uid-on-b1")
    assert entry not in zones.queue.waiting()
    assert zones.place(entry.ask.pod) in ("b1", "b2")


def test_a_pod_wakes_when_a_node_goes_that_was_uneven(zones: World) -> None:
    pod(zones, "one", "web", node="a1")
    for name in ("b1", "b2"):
        zones.node(name, labels={"zone": "b"}, unschedulable=True)
    entry = rejected(zones, pod(zones, "p", "web", topologySpreadConstraints=[spread("web")]))
    for name in ("b1", "b2"):
        zones.nodes.remove(name)
    assert entry not in zones.queue.waiting()
    assert zones.place(entry.ask.pod) in ("a1", "a2")


# A model that counts anew each time

_APPS, _SPACES, _KEYS = ("x", "y", "z"), ("default", "other"), ("zone", HOST)


class Model:
    """Nodes and pods as plain lists; what Kubernetes' plugins say, by looking at all of them."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, str]] = {}
        self.pods: dict[str, tuple[str, str, str, dict[str, Any]]] = {}  # name -> node, namespace, app, affinity

    def selects(self, wanted: dict[str, Any], owner: str, namespace: str, app: str) -> bool:
        spaces = wanted.get("namespaces") or [owner]
        everywhere = wanted.get("namespaceSelector") is not None
        selector = wanted["labelSelector"]
        return selector is not None and (everywhere or namespace in spaces) and selector["matchLabels"]["app"] == app

    def together(self, key: str, a: str, b: str) -> bool:
        first, second = self.nodes.get(a, {}).get(key), self.nodes.get(b, {}).get(key)
        return first is not None and first == second

    def fits(self, node: str, namespace: str, app: str, spec: dict[str, Any]) -> bool:
        affinity = spec.get("affinity", {})
        wanted = affinity.get("podAffinity", {}).get(REQUIRED, [])
        forbidden = affinity.get("podAntiAffinity", {}).get(REQUIRED, [])
        friends = [
            there for there, space, a, _ in self.pods.values() if all(self.selects(t, namespace, space, a) for t in wanted)
        ]  # fmt: skip
        if wanted:
            if any(t["topologyKey"] not in self.nodes[node] for t in wanted):
                return False
            met = all(any(self.together(t["topologyKey"], node, f) for f in friends) for t in wanted)
            somewhere = any(t["topologyKey"] in self.nodes.get(f, {}) for t in wanted for f in friends)
            if not met and (somewhere or not all(self.selects(t, namespace, namespace, app) for t in wanted)):
                return False
        for there, space, a, theirs in self.pods.values():
            if any(
                self.selects(t, namespace, space, a) and self.together(t["topologyKey"], node, there) for t in forbidden
            ):
                return False
            for t in theirs.get("podAntiAffinity", {}).get(REQUIRED, []):
                if self.selects(t, space, namespace, app) and self.together(t["topologyKey"], node, there):
                    return False
        return all(self._even(node, namespace, app, c, spec) for c in spec.get("topologySpreadConstraints", []))

    def _even(self, node: str, namespace: str, app: str, constraint: dict[str, Any], spec: dict[str, Any]) -> bool:
        key = constraint["topologyKey"]
        keys = {c["topologyKey"] for c in spec["topologySpreadConstraints"]}
        if key not in self.nodes[node]:
            return False
        counts: Counter[str] = Counter()
        for name, labels in self.nodes.items():
            if keys <= labels.keys():
                counts[labels[key]] += sum(
                    there == name and space == namespace and self.selects(constraint, namespace, space, a)
                    for there, space, a, _ in self.pods.values()
                )
        least = min(counts.values(), default=0) if len(counts) >= constraint.get("minDomains", 1) else 0
        own = self.selects(constraint, namespace, namespace, app)
        return bool(counts[self.nodes[node][key]] + own - least <= constraint["maxSkew"])


def random_spec(rng: random.Random) -> dict[str, Any]:
    def some() -> dict[str, Any]:
        more: Spec = rng.choice(({}, {}, {"namespaces": ["other"]}, {"namespaceSelector": {}}))
        return term(rng.choice(_APPS), rng.choice(_KEYS), **more)

    spec: dict[str, Any] = {}
    kind = rng.randrange(6)
    if kind in (1, 5):
        spec["affinity"] = near(*(some() for _ in range(rng.randint(1, 2))))
    if kind in (2, 5):
        spec["affinity"] = spec.get("affinity", {}) | apart(*(some() for _ in range(rng.randint(1, 2))))
    if kind in (3, 4):
        least: Spec = rng.choice(({}, {"minDomains": 2}))
        constraints = [spread(rng.choice(_APPS), key, rng.randint(1, 2), **least) for key in _KEYS[: rng.randint(1, 2)]]
        spec["topologySpreadConstraints"] = constraints
    return spec


@examples(120, deadline=None)
@given(st.integers(0, 1 << 32))
def test_counts_say_what_a_look_at_everything_says(seed: int) -> None:
    rng, world, model = random.Random(seed), World(), Model()
    specs = [random_spec(rng) for _ in range(5)]
    for step in range(40):
        what, name = rng.randrange(10), f"n{rng.randrange(5)}"
        if what < 2:
            labels = {"zone": rng.choice("ab")} if rng.random() < 0.8 else {}
            world.node(name, labels=labels)
            model.nodes[name] = {HOST: name, **labels}
        elif what == 2 and name in model.nodes:
            world.nodes.remove(name)
            del model.nodes[name]
        elif what < 7:
            space, app, spec = rng.choice(_SPACES), rng.choice(_APPS), rng.choice(specs)
            pod(world, f"p{step}", app, namespace=space, node=name, **spec)
            model.pods[f"p{step}"] = (name, space, app, spec.get("affinity", {}))
        elif model.pods:
            gone = rng.choice(sorted(model.pods))
            world.cluster.pod_lifted(f"uid-{gone}")
            del model.pods[gone]
        space, app, spec = rng.choice(_SPACES), rng.choice(_APPS), rng.choice(specs)
        expected = {node for node in model.nodes if model.fits(node, space, app, spec)}
        asking = pod(world, "asks", app, namespace=space, **spec)
        assert fits(world, asking) == expected, (step, space, app, spec)
        state = CycleState(compile_ask(asking))
        assert world.cycle.inter_pod.pre_filter(state) is None
        assert state.nodes is None or expected <= {world.cluster.columns.names[slot] for slot in state.nodes}
