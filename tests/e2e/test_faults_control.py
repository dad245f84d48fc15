"""The API server goes away, and comes back, once with an older state: a control plane of our own, agents as processes.

Agents are `tonnage node` with their node's bound token and a real pool. Pods are placed by the real scheduler on a node
that has no kubelet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster.processes import free_port
from msgspec.structs import replace
from tests.e2e import processes
from tests.e2e.agents import Nodes
from tests.e2e.hollow import Hollow, Parts, cpu_seconds, in_pool, measured, own_plane
from tests.e2e.processes import POOL_SIZE, Agent, agent, events, point, stays

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.storage.pools.base.record import VolumeRecord, seal, unseal

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
NAMESPACE = "faults-control"
MIB, GIB = 2**20, 2**30
DOWN = 60.0


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """A control plane that may be killed."""
    with own_plane(tmp_path_factory.mktemp("faults") / "plane") as made:
        made.plane.kubectl("create", "namespace", NAMESPACE)
        yield made


@pytest.fixture(scope="module")
def nodes(parts: Parts) -> Nodes:
    """They go with the control plane."""
    return Nodes(parts.plane, "control", NAMESPACE)


def test_the_api_server_is_down_for_a_minute_while_volumes_are_made(
    parts: Parts, nodes: Nodes, tell: Callable[[str], None]
) -> None:
    hollow, port, plane = Hollow(nodes, 1), free_port(), parts.plane
    pods = [f"pod-{n}" for n in range(40)]
    with agent(nodes, 1, "--metrics", str(port)) as served:
        process = served.program.process
        assert process is not None
        hollow.run(*pods)
        plane.until("some have their volume", lambda: len(hollow.volumes()) >= 5)
        parts.kill("kube-apiserver")
        began, asked, used = time.monotonic(), measured(port, "rest_client_requests_total"), cpu_seconds(process)
        time.sleep(DOWN)
        asked, used = measured(port, "rest_client_requests_total") - asked, cpu_seconds(process) - used
        assert process.poll() is None
        assert 0 < asked < 600  # each loop and each claim that waits, ever more slowly
        assert used < DOWN / 10
        parts.start("kube-apiserver")
        back = time.monotonic()
        sent = {names.volume_name(uid) for uid in hollow.sent()}
        assert sent
        plane.until("what was sent before is made", lambda: sent <= set(hollow.volumes()))
        served_again = time.monotonic() - back
        plane.until("all are placed", lambda: len(hollow.placed()) == len(pods))
        tell(
            f"faults: API server down {back - began:.0f} s, the agent asked {asked:.0f} times and used {used:.1f} s;"
            f" what it had been sent was made {served_again:.1f} s after it was back, {len(pods)} pods were placed"
            f" {time.monotonic() - back:.1f} s after (the wait is Kubernetes' own controllers')"
        )

        wanted = sorted(names.volume_name(uid) for uid in hollow.claims().values())
        assert len(wanted) == len(pods)
        assert hollow.volumes() == wanted
        assert sorted(in_pool(served)) == wanted
        assert set(in_pool(served).values()) == {32 * MIB}
        plane.until("the sum is right", lambda: served.free() == to_bytes(POOL_SIZE) - len(pods) * 32 * MIB)
        assert served.program.process is process
        assert process.poll() is None

        hollow.end_pods()
        plane.until("all room is back", lambda: served.free() == to_bytes(POOL_SIZE))
        assert in_pool(served) == {}
        plane.until("nothing is left", lambda: not hollow.volumes() and not hollow.claims())


KEEPING = "faults-kept"
"""A class whose volumes outlive what is restored: claims of people, policy Delete."""


def _claims(nodes: Nodes, *claims: str, node: str) -> dict[str, str]:
    """Claims of people that are bound: the names of their volumes."""
    for name in claims:
        nodes.claim(name, node, storageClassName=KEEPING)

    def made() -> dict[str, str]:
        found = {c["metadata"]["name"]: c for c in nodes.plane.get("-n", NAMESPACE, "pvc")["items"]}
        return {n: str(found[n]["spec"]["volumeName"]) for n in claims if found[n]["status"].get("phase") == "Bound"}

    nodes.plane.until(f"{claims} are bound", lambda: len(made()) == len(claims))
    return made()


def _make_class(nodes: Nodes) -> None:
    late = {"volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"}
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": KEEPING}}
    nodes.plane.apply({**head, **late, "provisioner": names.DRIVER})


def _age(served: Agent) -> None:
    """Volumes that were made just now are not judged yet: as if all had been made an hour ago."""
    served.program.kill()
    for file in served.pool.glob("*.json"):
        record = unseal(file.read_bytes(), VolumeRecord)
        file.write_bytes(seal(replace(record, created=record.created - 3600)))


def test_etcd_is_restored_from_a_backup(parts: Parts, nodes: Nodes, tmp_path: Path) -> None:
    """An agent that runs all the time, and one that is started afterwards: what is newer than the backup is kept."""
    _make_class(nodes)
    node, plane = nodes.add(2), parts.plane
    with agent(nodes, 2) as served:
        before = _claims(nodes, "old-1", "old-2", node=node)
        plane.until("it is published", lambda: served.free() == to_bytes(POOL_SIZE) - 2 * GIB)
        parts.backup(tmp_path / "backup")
        after = _claims(nodes, "new-1", "new-2", node=node)
        plane.kubectl("-n", NAMESPACE, "delete", "pvc", "old-2")
        volumes = {before["old-1"], *after.values()}
        plane.until("the deleted one is gone", lambda: set(in_pool(served)) == volumes)
        parts.restore(tmp_path / "backup")

        plane.until("it is noticed", lambda: "API server went back" in served.program.said())
        plane.until("the agent begins anew", lambda: "agent restarts its controllers" in served.program.said())
        # It serves the state that there is now, not the one that it had seen.
        told = to_bytes(POOL_SIZE) - 3 * GIB
        plane.until("the right number is published", lambda: served.free() == told)
        later = _claims(nodes, "later", node=node)
        assert set(in_pool(served)) == volumes | set(later.values())

        _age(served)
        served.program.start()
        plane.until("the orphans are told", lambda: "OrphanedVolumes" in dict(events(plane, "default", node)))
        text = dict(events(plane, "default", node))["OrphanedVolumes"]
        assert all(name in text for name in after.values())
        assert before["old-1"] not in text
        assert sorted(served.orphans()) == sorted(after.values())
        assert set(in_pool(served)) == volumes | set(later.values())  # nothing was swept

        for name in after.values():
            done = served.volumes("adopt", name, "--kubeconfig", str(plane.kubeconfig), "--yes")
            assert done.returncode == 0, done.stderr
        assert served.orphans() == []
        adopted = {v["spec"]["csi"]["volumeHandle"] for v in plane.get("pv")["items"]}
        assert {f"scratch/{name}" for name in after.values()} <= adopted
        assert set(in_pool(served)) == volumes | set(later.values())


def test_agents_are_pointed_at_a_new_cluster(
    parts: Parts, nodes: Nodes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The volumes are another cluster's, whatever they are: nothing is swept, nothing is told as an orphan of this."""
    _make_class(nodes)
    hollow = Hollow(nodes, 3)
    with agent(nodes, 3) as served:
        hollow.run("temporary", size="1Gi")
        made = _claims(nodes, "first", "second", node=hollow.node)
        parts.plane.until("the pod is placed", lambda: hollow.placed() == ["temporary"])
        volumes = in_pool(served)
        assert set(made.values()) < set(volumes)
        assert len(volumes) == 3
        _age(served)
        with own_plane(tmp_path_factory.mktemp("new") / "plane") as new:
            others = Nodes(new.plane, "control", NAMESPACE)
            assert others.add(3) == hollow.node
            point(served, new.plane, others.tokens[hollow.node])
            served.program.start()
            free = to_bytes(POOL_SIZE) - 3 * GIB

            def published() -> bool:
                return processes.free(new.plane, hollow.node) == free

            new.plane.until("its room is published", published)
            stays("nothing is swept", lambda: in_pool(served) == volumes, seconds=3)
            said = served.program.said()
            assert "leftover volume removed" not in said
            assert "SweepStopped" not in said
            served.program.kill()
        point(served, parts.plane, nodes.tokens[hollow.node])
        served.program.start()
        hollow.end_pods()
        parts.plane.kubectl("-n", NAMESPACE, "delete", "pvc", "first", "second")
        parts.plane.until("back in its own cluster it goes on", lambda: in_pool(served) == {})
