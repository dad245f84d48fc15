"""What scenes on real kubelets look at and wait for: pods that write all the time, and what is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.e2e.machines import POOL_SIZE, Machines, container
from tests.e2e.machines import pod as ephemeral_pod
from tests.e2e.processes import events, until

from tonnage.kubernetes.api.quantity import to_bytes

WHOLE = to_bytes(POOL_SIZE)
LOOP = (
    "touch /data/log; n=$(wc -l < /data/log); while n=$((n + 1)); do echo $n >> /data/log && sync /data/log || exit 1;"
    ' [ "$(tail -n 1 /data/log)" = $n ] || exit 2; sleep 0.1; done'
)
"""Writes and reads, goes on where another pod ended, and ends at the first error."""


@contextmanager
def removed(machines: Machines, *objects: str) -> Iterator[None]:
    """Afterwards those objects (kind/name) are away, whatever happened, and nothing of their volumes is left."""
    try:
        yield
    finally:
        for name in objects:
            machines.plane.kubectl("delete", "--ignore-not-found", name, "--timeout=100s")
        whole = dict.fromkeys(machines.names, WHOLE)
        until(machines.plane, "all room is back", lambda: machines.capacities() == whole)


def claim(machines: Machines, name: str, storage_class: str, size: str = "1Gi") -> str:
    """A claim; its uid."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
    return str(machines.plane.create(body)["metadata"]["uid"])


def pod(name: str, claim_name: str = "", *, command: str = "sleep 100000", node: str = "", hand: str = "") -> Any:
    """A pod with a claim at /data, else with a disk of its own (1Gi). node: where it must go. hand: where it is put."""
    body = ephemeral_pod(name, "1Gi", command, node)
    if claim_name:
        body["spec"]["volumes"] = [{"name": "disk", "persistentVolumeClaim": {"claimName": claim_name}}]
    if hand:
        body["spec"]["nodeName"] = hand
    return body


def wait_ready(machines: Machines, name: str) -> str:
    """Wait until a pod runs; its node."""
    try:
        until(machines.plane, f"{name} is ready", partial(is_ready, machines, name))
    except AssertionError as late:
        raise AssertionError(f"{late}\n{events(machines.plane, 'default', name)}") from late
    return str(machines.plane.get("pod", name)["spec"]["nodeName"])


def is_ready(machines: Machines, name: str) -> bool:
    """Whether a pod runs that may not be there at all."""
    return is_there(machines, "pod", name) and machines.is_ready(name)


def phase(machines: Machines, kind: str, name: str) -> str:
    """Of a claim or volume, "" when it is gone."""
    found = machines.plane.try_kubectl("get", kind, name, "-o", "jsonpath={.status.phase}")
    return found.stdout if found.returncode == 0 else ""


def written(machines: Machines, name: str) -> int:
    """How many lines the pod has written, none of them missing."""
    lines = machines.shell(name, "cat /data/log").splitlines()
    wrong = [(number, line) for number, line in enumerate(lines, 1) if line != str(number)]
    assert not wrong, f"{len(wrong)} of {len(lines)} lines of {name}, the first is {wrong[0]}"
    return len(lines)


def goes_on(machines: Machines, name: str) -> None:
    """A pod writes, and was never started again."""
    before = written(machines, name)
    until(machines.plane, f"{name} goes on", lambda: written(machines, name) > before + 3)
    assert container(machines.plane.get("pod", name))[1] == 0


def is_there(machines: Machines, *what: str) -> bool:
    """Whether kubectl finds it."""
    return machines.plane.try_kubectl("get", *what).returncode == 0


def told(machines: Machines, about: str, *words: str) -> bool:
    """Whether an Event about an object has all those words."""
    return any(all(w in text for w in words) for _, text in events(machines.plane, "default", about))
