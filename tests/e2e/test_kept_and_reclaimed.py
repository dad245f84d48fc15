"""Finished pods give their disk back, and deleted volumes return, on real kubelets with the rights of an installation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.e2e.machines import Machines
from tests.e2e.machines import pod as ephemeral_pod
from tests.e2e.pods import WHOLE, claim, is_there, phase, pod, removed
from tests.e2e.processes import until

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]


@contextmanager
def _class(machines: Machines, name: str, **parameters: str) -> Iterator[None]:
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": names.DRIVER,
        "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
        "parameters": parameters,
    }
    machines.plane.apply(body)
    try:
        yield
    finally:
        machines.plane.kubectl("delete", "storageclass", "--ignore-not-found", name)


def _ended(machines: Machines, body: Any) -> None:
    """Run a pod to its end."""
    body["spec"]["restartPolicy"] = "Never"
    name = body["metadata"]["name"]
    machines.plane.apply(body)
    until(machines.plane, f"{name} has succeeded", lambda: phase(machines, "pod", name) == "Succeeded")


def test_finished_pods_stay_and_their_disk_is_that_of_the_next(machines: Machines) -> None:
    """Each has two thirds of the pool of one node."""
    pods = [f"part-{number}" for number in range(3)]
    with (
        removed(machines, *(f"pod/{name}" for name in pods)),
        _class(machines, "reclaims", **{names.RECLAIM_FINISHED: "true"}),
    ):
        for name in pods:
            body = ephemeral_pod(name, "4Gi", "echo part > /data/part", "node-1")
            template = body["spec"]["volumes"][0]["ephemeral"]["volumeClaimTemplate"]
            template["spec"]["storageClassName"] = "reclaims"
            _ended(machines, body)
        until(machines.plane, "all room is back", lambda: machines.capacities()["node-1"] == WHOLE)
        assert [phase(machines, "pod", name) for name in pods] == ["Succeeded"] * 3
        for name in pods:
            found = machines.plane.get("pvc", f"{name}-disk")
            conditions = {one["type"]: one["message"] for one in found["status"]["conditions"]}
            assert f"pod default/{name} has succeeded" in conditions[names.RECLAIMED]
            volume = machines.plane.get("pv", found["spec"]["volumeName"])
            assert volume["status"]["reason"] == names.RECLAIMED


def test_a_deleted_volume_returns_with_its_data(machines: Machines) -> None:
    """By the commands of docs/tasks/undelete.md, on the node."""
    endpoint = f"unix:///var/lib/kubelet/plugins/{names.DRIVER}/csi.sock"

    admin = f"--kubeconfig={machines.plane.kubeconfig}"

    def volumes(*words: str) -> str:
        command = [sys.executable, "-m", "tonnage", "volumes", *words, "--endpoint", endpoint]
        return machines.node("node-1").inside(*command)

    with (
        removed(machines, "pod/writer", "pod/reader", "pvc/kept"),
        _class(machines, "careful", **{names.UNDELETE: "24h"}),
    ):
        uid = claim(machines, "kept", "careful")
        _ended(machines, pod("writer", "kept", command="echo mine > /data/file", node="node-1"))
        machines.plane.kubectl("delete", "pod/writer", "pvc/kept")
        until(machines.plane, "its PV is gone", lambda: not is_there(machines, "pv", names.volume_name(uid)))
        until(machines.plane, "its bytes are free", lambda: machines.capacities()["node-1"] == WHOLE)
        handle = f"scratch/{names.volume_name(uid)}"
        assert handle in volumes("trash")
        volumes("restore", handle, "--yes", "--storage-class", "careful", admin)
        until(machines.plane, "it is bound", partial(_is_bound, machines))
        _ended(machines, pod("reader", "kept", command="test $(cat /data/file) = mine"))
        assert machines.plane.get("pod", "reader")["spec"]["nodeName"] == "node-1"
        machines.plane.kubectl("delete", "pod/reader", "pvc/kept")
        volume = names.volume_name(uid)
        machines.plane.kubectl("delete", "pv", volume)
        volumes("purge", handle, "--yes", admin)
        until(machines.plane, "nothing is mounted", lambda: machines.mounts("node-1", uid) == [])


def _is_bound(machines: Machines) -> bool:
    return phase(machines, "pvc", "kept") == "Bound"
