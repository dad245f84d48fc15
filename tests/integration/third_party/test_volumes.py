"""`tonnage pools` and `tonnage volumes` on a box: an orphan is found, adopted, used by a claim, and purged at last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.clusters import verb

pytestmark = pytest.mark.real
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "kept"},
    "spec": {
        "storageClassName": "tonnage-immediate",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Any]) -> Iterator[Any]:
    """Two nodes that run no containers."""
    box = make_cluster(
        "--nodes", "2", "--runtime", "none", "--pool", "image,name=scratch,size=10Gi,sparse=yes,overcommit=yes"
    )
    box.up()
    yield box
    box.down("--purge")


def _tonnage(box: Any, *arguments: str, code: int = 0) -> str:
    ended = verb(*arguments, "--data", str(box.data))
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr if code or "adopt" in arguments else ended.stdout


def _volumes(box: Any, action: str = "list") -> list[Any]:
    return list(json.loads(_tonnage(box, "volumes", action, "-o", "json"))["volumes"])


def _free(box: Any) -> list[int]:
    return sorted(pool["free"] for pool in json.loads(_tonnage(box, "pools", "-o", "json"))["pools"])


def _claim(box: Any, **spec: str) -> str:
    """Make the claim and wait until it is bound; its volume's name."""
    text = json.dumps({**CLAIM, "spec": {**CLAIM["spec"], **spec}})  # type: ignore[dict-item]
    box.kubectl("apply", "-f", "-", stdin=text)
    box.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc/kept", "--timeout=300s")
    return str(box.get("pvc", "kept")["spec"]["volumeName"])


def test_the_life_of_an_orphan(box: Any) -> None:
    name = _claim(box)
    (volume,) = _volumes(box)
    assert (volume["id"], volume["claim"], volume["size"]) == (f"scratch/{name}", "default/kept", 1 << 30)
    assert _free(box) == [9 << 30, 10 << 30]
    assert _volumes(box, "orphans") == []
    rejected = _tonnage(box, "volumes", "purge", name, "--yes", code=3)
    assert f"volume scratch/{name} has a PersistentVolume ({name}: delete its claim" in rejected

    box.kubectl("patch", "pv", name, "--type=merge", "-p", '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}')
    box.kubectl("delete", "pvc", "kept", "--timeout=300s")
    box.kubectl("delete", "pv", name, "--timeout=300s")
    assert [found["id"] for found in _volumes(box, "orphans")] == [f"scratch/{name}"]
    _tonnage(box, "volumes", "purge", name)
    assert len(_volumes(box)) == 1

    shown = _tonnage(box, "volumes", "adopt", name, "--as", "again")
    assert "kind: PersistentVolume" in shown
    assert 'it has no class, because volumes do not record theirs: a claim binds it with storageClassName: ""' in shown
    assert box.get("pv")["items"] == []
    shown = _tonnage(box, "volumes", "adopt", name, "--as", "again", "--storage-class", "tonnage-immediate", "--yes")
    assert "it has no class" not in shown
    assert _claim(box, volumeName="again") == "again"
    assert _volumes(box, "orphans") == []

    box.kubectl("delete", "pvc", "kept", "--timeout=300s")
    box.kubectl("delete", "pv", "again", "--timeout=300s")
    _tonnage(box, "volumes", "purge", name, "--yes")
    assert _volumes(box) == []
    assert _free(box) == [10 << 30, 10 << 30]


def test_a_stopped_box_is_read_directly_and_nothing_of_it_is_purged(box: Any) -> None:
    name = _claim(box)
    before = _volumes(box)
    box.down()
    try:
        (volume,) = _volumes(box)
        assert {key: volume[key] for key in before[0] if key != "topology"} == {
            key: value for key, value in before[0].items() if key != "topology"
        }
        assert _free(box) == [9 << 30, 10 << 30]
        rejected = _tonnage(box, "volumes", "purge", name, "--yes", code=3)
        assert f"its cluster does not run: `tonnage up --data {box.data}`" in rejected
    finally:
        box.up()
    assert [found["id"] for found in _volumes(box)] == [f"scratch/{name}"]
