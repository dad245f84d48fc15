"""A group snapshot in the box by kubectl: data and log of a pod at one moment, restored in another pod, and deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.clusters import Cluster, verb
from tests.integration.test_data_services import apply, claim, run, sh

pytestmark = pytest.mark.real
CLAIMS = ("data", "log")


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=4Gi,sparse=yes")
    cluster.up()
    yield cluster
    cluster.down("--purge")


def pod(name: str, claims: dict[str, str]) -> dict[str, Any]:
    """A pod that waits for ever. claims: by the folder where they are mounted."""
    mounts = [{"name": folder, "mountPath": f"/{folder}"} for folder in claims]
    main = {"name": "main", "image": "x", "command": ["sleep", "infinity"], "volumeMounts": mounts}
    volumes = [{"name": folder, "persistentVolumeClaim": {"claimName": one}} for folder, one in claims.items()]
    spec = {"terminationGracePeriodSeconds": 0, "containers": [main], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def labelled(name: str) -> dict[str, Any]:
    made = claim(name, "128Mi", "tonnage-scratch")
    made["metadata"]["labels"] = {"app": "db"}
    return made


def group(name: str) -> dict[str, Any]:
    spec = {"source": {"selector": {"matchLabels": {"app": "db"}}}}
    version = "groupsnapshot.storage.k8s.io/v1"
    return {"apiVersion": version, "kind": "VolumeGroupSnapshot", "metadata": {"name": name}, "spec": spec}


def members(box: Cluster) -> dict[str, str]:
    """Claim -> its VolumeSnapshot."""
    found = box.get("volumesnapshots")["items"]
    return {one["spec"]["source"]["persistentVolumeClaimName"]: one["metadata"]["name"] for one in found}


def test_data_and_log_of_one_moment_come_back_together(box: Cluster) -> None:
    run(box, *map(labelled, CLAIMS), pod("db", {name: name for name in CLAIMS}))
    sh(box, "db", "echo before > /data/f; echo before > /log/f; sync")
    apply(box, group("nightly"))
    box.kubectl("wait", "--for=jsonpath={.status.readyToUse}=true", "vgs/nightly", "--timeout=120s")
    sh(box, "db", "echo after > /data/f; echo after > /log/f; sync")
    taken = members(box)
    assert set(taken) == set(CLAIMS)
    columns = box.kubectl("get", "vgs").splitlines()
    assert columns[0].split()[:3] == ["NAME", "READYTOUSE", "VOLUMEGROUPSNAPSHOTCLASS"]
    assert columns[1].split()[:3] == ["nightly", "true", "tonnage"]
    for name, snapshot in taken.items():
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot}
        apply(box, claim(f"old-{name}", "128Mi", "tonnage-scratch", dataSource=source))
    run(box, pod("old", {name: f"old-{name}" for name in CLAIMS}))
    assert [sh(box, "old", f"cat /{name}/f") for name in CLAIMS] == ["before", "before"]
    assert [sh(box, "db", f"cat /{name}/f") for name in CLAIMS] == ["after", "after"]


def test_a_member_stays_with_its_group_and_nothing_is_left_afterwards(box: Cluster) -> None:
    name = members(box)["log"]
    box.kubectl("delete", "volumesnapshot", name, "--wait=false")
    box.until("it is rejected", lambda: "SnapshotDeletePending" in box.kubectl("get", "events"))
    assert "log" in members(box)
    box.kubectl("delete", "pod", "db", "old")
    box.kubectl("delete", "pvc", *CLAIMS, *(f"old-{name}" for name in CLAIMS))
    box.kubectl("delete", "vgs", "nightly", "--timeout=120s")
    box.until("no member is left", lambda: not members(box))
    for kind in ("vgsc", "vsc", "pv"):
        box.until(f"no {kind} is left", lambda kind=kind: not box.get(kind)["items"])  # type: ignore[misc]
    box.until("the pool is empty", lambda: not held(box))


def held(box: Cluster) -> list[Any]:
    """What is in the pools."""
    listed = verb("volumes", "list", "--data", str(box.data), "-o", "json")
    found = json.loads(listed.stdout)
    return [*found["volumes"], *found["snapshots"]]
