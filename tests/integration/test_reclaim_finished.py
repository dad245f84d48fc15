"""Finished pods give their disk back: examples/jobs-many.yaml on a real box, with fewer parts on a smaller pool."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.clusters import Cluster

from tonnage.kubernetes.api import names

EXAMPLE = Path(__file__).parents[2] / "examples" / "jobs-many.yaml"
PARTS, FITTING = 12, 3


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """A node whose pool has capacity for three of the parts."""
    cluster = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=700Mi,sparse=yes")
    cluster.up()
    yield cluster
    cluster.down("--purge")


@pytest.fixture(scope="module")
def finished(box: Cluster) -> list[Any]:
    """The claims of the Job's pods, all of which have finished and are still there."""
    storage_class, job = yaml.safe_load_all(EXAMPLE.read_text())
    assert job["spec"]["parallelism"] == 20
    job["spec"].update(completions=PARTS, parallelism=FITTING)
    for body in (storage_class, job):
        box.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(body))
    box.kubectl("wait", "--for=condition=Complete", "job/many", "--timeout=300s")
    return list(box.get("pvc")["items"])


@pytest.mark.real
def test_all_parts_run_on_a_pool_for_three(box: Cluster, finished: list[Any]) -> None:
    pods = box.get("pods")["items"]
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * PARTS
    assert len(finished) == PARTS

    def are_reclaimed() -> bool:
        return all(volume["status"].get("reason") == names.RECLAIMED for volume in box.get("pv")["items"])

    box.until("all data is deleted", are_reclaimed)
    for claim in box.get("pvc")["items"]:
        (condition,) = claim["status"]["conditions"]
        assert (claim["status"]["phase"], condition["type"], condition["reason"]) == (
            "Bound",
            "Reclaimed",
            "PodFinished",
        )
    whole = {"node-1": "700Mi"}
    box.until("the whole pool is free", lambda: box.capacities("scratch-jobs") == box.capacities() == whole)


@pytest.mark.real
def test_a_pod_that_names_the_claim_is_rejected_with_the_reason(box: Cluster, finished: list[Any]) -> None:
    name = finished[0]["metadata"]["name"]
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": name}}
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["true"],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late"}, "spec": {"volumes": [volume]}}
    body["spec"] |= {"containers": [container], "restartPolicy": "Never"}  # type: ignore[operator]
    box.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(body))
    box.until(
        "the Event says why",
        lambda: "has no data any more: pod default/many-" in box.kubectl("describe", "pod", "late"),
    )
    box.kubectl("delete", "pod", "late")


@pytest.mark.real
def test_everything_goes_with_the_job_and_a_restart_changes_nothing(box: Cluster, finished: list[Any]) -> None:
    box.down()
    box.up()
    assert {v["status"].get("reason") for v in box.get("pv")["items"]} == {names.RECLAIMED}
    box.kubectl("delete", "job", "many")
    box.until("all is gone", lambda: not box.get("pvc")["items"] and not box.get("pv")["items"])
    left = [(folder, files) for folder, _, files in os.walk(box.data) if folder.endswith("reclaimed/scratch")]
    assert [files for _, files in left] == [[]], left
