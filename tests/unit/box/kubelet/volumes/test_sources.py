"""ConfigMaps, Secrets and fields that pods name."""

from __future__ import annotations

from typing import Any

from tonnage.kubernetes.api.kinds import CONFIG_MAPS


async def test_a_config_map_that_comes_later_is_found(machine: Any) -> None:
    await machine.pod("p", volumes=[{"name": "c", "configMap": {"name": "cm"}}])
    await machine.event("FailedMount")
    await machine.client.create(CONFIG_MAPS, {"metadata": {"name": "cm"}, "data": {"k": "v"}}, "default")
    pod = await machine.phase("p", "Running")
    folder = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~configmap/c"
    assert (folder / "k").read_text() == "v"
