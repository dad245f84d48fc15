"""Which controllers of workloads run: those that something needs, and only those."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.fixture_types import Settle

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import DEPLOYMENTS, PODS
from tonnage.kubernetes.client.client import Client
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]


def running(workloads: Any) -> set[str]:
    return {name for name, _ in workloads._made}


async def test_each_begins_with_the_first_object_of_its_kind(
    workloads: Any, workload: Make, make_pod: Make, settle: Settle, eventually: Eventually
) -> None:
    await make_pod("plain")
    await settle()
    assert running(workloads) == set()
    await workload(DEPLOYMENTS, "web", replicas=1)

    async def both() -> bool:
        return running(workloads) == {"deployment", "replicaset"}

    await eventually(both)


async def test_a_pod_that_a_vanished_job_holds_is_let_go(
    kube: Client, workloads: Any, make_pod: Make, eventually: Eventually
) -> None:
    """Killed between the end of a Job and that of its pods: no Job is there that would bring its controller."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "gone", "controller": True}
    await make_pod("held")
    meta = {"finalizers": [names.JOB_TRACKING], "ownerReferences": [owner]}
    await kube.patch(PODS, "held", {"metadata": meta}, "default")

    async def gone() -> bool:
        return not (await kube.list(PODS)).items

    await eventually(gone)


@pytest.mark.slow
def test_an_idle_box_reads_none_of_them() -> None:
    code = (
        "import sys, tonnage_box.cluster\n"
        "print([m for m in sys.modules if m.startswith('tonnage_box.controllers.') and m.rpartition('.')[2] in "
        "('deployment', 'replicaset', 'statefulset', 'daemonset', 'job', 'cronjob', 'deployment_plan', 'history', 'expectations')])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout
    assert said == "[]\n"
