"""From a claim that is sent to the node to a bound volume, and back."""

from __future__ import annotations

from typing import Any

from tonnage.api import kinds, names


async def test_a_claim_gets_a_volume_and_the_capacity_falls_and_rises(
    make_node: Any, scratch_pod: Any, eventually: Any, all_events: Any
) -> None:
    node = await make_node()

    async def shown(*want: str) -> bool:
        return await node.capacity() == want

    await eventually(lambda: shown("30716Mi", "30716Mi"))
    await scratch_pod("app", "4Gi")
    await node.send("app-v0")

    async def bound() -> bool:
        return await node.phase("app-v0") == "Bound"

    await eventually(bound)
    await eventually(lambda: shown("26620Mi", "26620Mi"))
    claim = await node.claim("app-v0")
    volume = await node.kube.get(kinds.VOLUMES, f"pvc-{claim.metadata.uid}")
    assert await node.volumes() == [volume.metadata.name]
    assert volume.status.phase == "Bound"
    assert volume.metadata.labels[names.NODE_LABEL] == "node-1"
    assert volume.metadata.annotations[names.PROVISIONED_BY] == names.DRIVER
    assert names.PROVISIONER_FINALIZER not in volume.metadata.finalizers
    term = volume.spec.node_affinity.required.node_selector_terms[0].match_expressions[0]
    assert (term.key, term.operator, term.values) == (names.TOPOLOGY_NODE, "In", ["node-1"])
    told = {(o, r) for o, r, _ in await all_events()}
    assert {("app-v0", "Provisioning"), ("app-v0", "ProvisioningSucceeded")} <= told

    await node.release("app-v0")
    await eventually(lambda: shown("30716Mi", "30716Mi"))
    assert await node.volumes() == []
