"""What a kubelet tells through nodes/proxy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage.base.errors import ApiError

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


async def test_the_summary_has_the_volumes_of_pods(machine: Any) -> None:
    await machine.volume("a", 1 << 30)
    inline = {"name": "scratch", "csi": {"driver": "csi.tonnage.dev", "volumeAttributes": {"size": "1Gi"}}}
    await machine.pod("p", volumes=[*CLAIM, inline, {"name": "e", "emptyDir": {}}])
    await machine.phase("p", "Running")
    content_type, body = await machine.kubelet.answer("stats/summary")
    assert content_type == "application/json"
    summary = msgspec.json.decode(body)
    assert summary["node"]["nodeName"] == "node-1"
    assert summary["node"]["fs"]["capacityBytes"] > 0
    (pod,) = summary["pods"]
    assert (pod["podRef"]["name"], pod["podRef"]["namespace"]) == ("p", "default")
    assert [container["name"] for container in pod["containers"]] == ["main"]
    by_name = {volume["name"]: volume for volume in pod["volume"]}
    assert set(by_name) == {"data", "scratch"}
    assert by_name["data"]["pvcRef"] == {"name": "a", "namespace": "default"}
    assert "pvcRef" not in by_name["scratch"]
    assert by_name["data"]["capacityBytes"] > 0
    assert by_name["data"]["volumeHealthStats"] == {"abnormal": False}


async def test_metrics_are_by_claim(machine: Any) -> None:
    await machine.volume("a", 1 << 30)
    for name in ("p", "q"):
        await machine.pod(name, volumes=CLAIM)
        await machine.phase(name, "Running")
    content_type, body = await machine.kubelet.answer("metrics")
    assert content_type.startswith("text/plain")
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    assert all('{namespace="default",persistentvolumeclaim="a"} ' in line for line in lines)
    assert [line.partition("{")[0].removeprefix("kubelet_volume_stats_") for line in lines] == [
        "available_bytes",
        "capacity_bytes",
        "inodes",
        "inodes_free",
        "inodes_used",
        "used_bytes",
        "health_status_abnormal",
    ]


async def test_other_paths_are_rejected_by_name(machine: Any) -> None:
    assert await machine.kubelet.answer("healthz") == ("text/plain; charset=utf-8", b"ok")
    with pytest.raises(ApiError, match="and not 'configz'") as raised:
        await machine.kubelet.answer("configz")
    assert raised.value.code == 404
