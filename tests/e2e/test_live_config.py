"""The ConfigMap of agents that serve is changed: a real kubelet swaps the file, the agent follows it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml
from tests.e2e.machines import GIB, POOL_SIZE, SYSTEM, WRITER, Machines, container

from tonnage.kubernetes.api.quantity import to_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
CONFIG = "tonnage-node"


def _config(machines: Machines) -> dict[str, object]:
    found = machines.plane.get("-n", SYSTEM, "configmap", CONFIG)["data"]["node.yaml"]
    content = yaml.safe_load(found)
    assert isinstance(content, dict)
    return content


def _put(machines: Machines, content: dict[str, object]) -> None:
    """Change it; a pod that changes is looked at by its kubelet at once, which then swaps the files."""
    patch = {"data": {"node.yaml": yaml.safe_dump(content)}}
    machines.plane.kubectl("-n", SYSTEM, "patch", "configmap", CONFIG, "--type=merge", "-p", json.dumps(patch))


def _nudged(machines: Machines, holds: Callable[[], bool], number: list[int]) -> Callable[[], bool]:
    """The same question; before it the kubelets are made to look at the agents' pods."""

    def question() -> bool:
        if holds():
            return True
        number[0] += 1
        pods = [pod["metadata"]["name"] for pod in machines.agents().values()]
        machines.plane.kubectl("-n", SYSTEM, "annotate", "--overwrite", "pod", *pods, f"test/looked={number[0]}")
        return holds()

    return question


def _told(machines: Machines, reason: str) -> dict[str, list[str]]:
    """Node -> messages of its Events with that reason."""
    found: dict[str, list[str]] = {name: [] for name in machines.names}
    for event in machines.plane.get("events", "-n", "default")["items"]:
        about = event["involvedObject"]
        if about["kind"] == "Node" and event["reason"] == reason and event["source"]["component"] == "tonnage-node":
            found[about["name"]].append(event["message"])
    return found


def test_agents_follow_their_config_map(machines: Machines) -> None:
    plane, number = machines.plane, [0]
    before, agents = _config(machines), {node: container(pod) for node, pod in machines.agents().items()}
    pools = before["pools"]
    assert isinstance(pools, list)
    (pool,) = pools
    with machines.removed("under-config"):
        machines.start("under-config", "1Gi", command=WRITER)
        node = machines.wait_ready("under-config")
        uid = machines.uid("under-config-disk")
        mounts = machines.mounts(node, uid)
        try:
            larger = to_bytes(POOL_SIZE) + GIB
            more = {"name": "second", "kind": "fake", "size": "1Gi"}
            _put(machines, {**before, "pools": [{**pool, "size": str(larger)}, more], "bind": "controller"})

            def follows() -> bool:
                capacities = machines.capacities()
                return all(capacities[name] == larger - (GIB if name == node else 0) for name in machines.names)

            plane.until("both nodes have more room", _nudged(machines, follows, number))

            def explained() -> bool:
                rejected, changed = _told(machines, "ConfigurationRefused"), _told(machines, "ConfigurationChanged")
                return all(
                    any("bind changes from agent to controller" in text for text in rejected[name])
                    and any("pool second is added" in text for text in changed[name])
                    for name in machines.names
                )

            plane.until("both nodes say what was done and what was not", explained)

            _put(machines, {**before, "pools": [more, pool]})
            wanted = "that stays scratch"
            plane.until(
                "another default pool is rejected",
                _nudged(
                    machines,
                    lambda: all(wanted in " ".join(t) for t in _told(machines, "ConfigurationRefused").values()),
                    number,
                ),
                seconds=120,
            )
        finally:
            _put(machines, before)
            whole = to_bytes(POOL_SIZE)
            plane.until(
                "all is as it was",
                _nudged(machines, lambda: max(machines.capacities().values()) == whole, number),
                seconds=120,
            )
        assert machines.mounts(node, uid) == mounts
        assert {name: container(pod) for name, pod in machines.agents().items()} == agents
        lines = machines.shell("under-config", "cat /data/log").splitlines()
        assert lines == [str(count) for count in range(1, len(lines) + 1)]
