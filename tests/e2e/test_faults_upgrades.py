"""Upgrades, and a CSIDriver that is deleted, under pods that read and write: two real kubelets, agents from our image."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest
from scripts.gen_chart import CHART
from tests.e2e.machines import SYSTEM, Machines
from tests.e2e.pods import LOOP, goes_on, phase, pod, removed, wait_ready
from tests.e2e.processes import until
from tests.programs import found

from tonnage.kubernetes.api import names
from tonnage.tools.ops.install.options import IMAGE

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]


def test_the_csidriver_is_deleted_under_pods(machines: Machines) -> None:
    """Kubernetes then takes the driver for one that attaches volumes: pods that run go on, new ones wait for it."""
    plane = machines.plane
    body = plane.get("csidriver", names.DRIVER)
    meta = {key: body["metadata"][key] for key in ("name", "labels", "annotations") if key in body["metadata"]}
    with removed(machines, "pod/before", "pod/ends", "pod/meanwhile"):
        plane.apply(pod("before", command=LOOP, node="node-1"), pod("ends", node="node-1"))
        wait_ready(machines, "before")
        wait_ready(machines, "ends")
        uid, ended = machines.uid("before-disk"), machines.uid("ends-disk")
        mounts = machines.mounts("node-1", uid)
        plane.kubectl("delete", "csidriver", names.DRIVER)
        try:
            plane.apply(pod("meanwhile", node="node-1"))
            until(plane, "the new pod waits", lambda: is_attached(machines, "meanwhile-disk") is False)
            goes_on(machines, "before")
            plane.kubectl("delete", "pod", "ends")
            until(plane, "a pod that ends leaves nothing", lambda: not machines.left(ended))
            assert not machines.is_ready("meanwhile")
        finally:
            plane.apply(
                {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": meta, "spec": body["spec"]}
            )
        until(plane, "the new pod runs", lambda: machines.is_ready("meanwhile"))
        goes_on(machines, "before")
        assert machines.mounts("node-1", uid) == mounts
    assert machines.left(uid) == []
    for item in plane.get("volumeattachments")["items"]:  # which Kubernetes forgets; nobody waits for them
        plane.kubectl("delete", "volumeattachment", item["metadata"]["name"])


def is_attached(machines: Machines, claim_name: str) -> bool | None:
    """Whether a claim's volume is; None when nobody wants that."""
    if phase(machines, "pvc", claim_name) != "Bound":
        return None
    volume = f"pvc-{machines.uid(claim_name)}"
    for item in machines.plane.get("volumeattachments")["items"]:
        if item["spec"]["source"]["persistentVolumeName"] == volume:
            return bool(item.get("status", {}).get("attached"))
    return None


@pytest.fixture
def helm(machines: Machines) -> Callable[..., str]:
    """helm(verb, *flags) on the release that the machines has from our chart."""
    program = str(found("helm"))
    environment = {**os.environ, "HOME": str(machines.plane.folder / "helm")}

    def run(verb: str, *flags: str) -> str:
        common = (f"--kubeconfig={machines.plane.kubeconfig}", "--namespace", SYSTEM)
        command = [program, verb, "tonnage", *flags, *common]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return str(ended.stdout)

    return run


def rolled_out(machines: Machines) -> None:
    for what in ("daemonset/tonnage-node", "deployment/tonnage-controller"):
        machines.plane.kubectl("-n", SYSTEM, "rollout", "status", what, "--timeout=110s")
    until(machines.plane, "all agents are ready", lambda: set(machines.agents()) == set(machines.names))


def images(machines: Machines) -> set[str]:
    """Of the agents that run."""
    return {pod["spec"]["containers"][0]["image"] for pod in machines.agents().values()}


def test_an_upgrade_under_pods(machines: Machines, helm: Callable[..., str]) -> None:
    """Another image, then another value, then back: pods on both nodes read and write all the time, and nothing is
    mounted anew."""
    plane = machines.plane
    running = {f"runs-{node}": node for node in machines.names}
    next_image = f"{IMAGE}-next"
    revision = json.loads(helm("status", "--output=json"))["version"]
    for node in machines.names:
        machines.node(node).ctr("images", "tag", IMAGE, next_image)
    with removed(machines, *(f"pod/{name}" for name in running), "pod/later"):
        plane.apply(*(pod(name, command=LOOP, node=node) for name, node in running.items()))
        for name in running:
            wait_ready(machines, name)
        uids = {name: machines.uid(f"{name}-disk") for name in running}
        before = {name: machines.mounts(node, uids[name]) for name, node in running.items()}
        assert all(len(mounts) >= 2 for mounts in before.values())
        assert images(machines) == {IMAGE}

        def still_the_same() -> None:
            rolled_out(machines)
            for name, node in running.items():
                goes_on(machines, name)
                assert machines.mounts(node, uids[name]) == before[name]

        helm("upgrade", str(CHART), "--reuse-values", "--set", f"image.tag={next_image.rpartition(':')[2]}")
        still_the_same()
        assert images(machines) == {next_image}
        helm("upgrade", str(CHART), "--reuse-values", "--set", "node.resources.limits.memory=400Mi")
        still_the_same()
        limits = [p["spec"]["containers"][0]["resources"]["limits"]["memory"] for p in machines.agents().values()]
        assert limits == ["400Mi", "400Mi"]
        machines.start("later", "1Gi")
        wait_ready(machines, "later")
        helm("rollback", str(revision))
        still_the_same()
        assert images(machines) == {IMAGE}
    for name in running:
        assert machines.left(uids[name]) == []
