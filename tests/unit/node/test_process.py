"""The node's process: its driver serves, and its agent works, for the cluster that answers."""

from __future__ import annotations

from tests.unit.node.served import ServedNode, published

from tonnage.kubernetes.api import names


async def test_the_agent_gets_the_whole_configuration_and_the_clusters_uid(node: ServedNode) -> None:
    await published(node, {"one": 1, "two": 0})
    agent = node.process.agent
    assert agent is not None
    assert agent.scope.node == "node-1"
    assert agent.scope.cluster_uid
    assert [driver.name for driver in agent.drivers] == [names.DRIVER]


async def test_a_stopped_process_serves_nothing(node: ServedNode) -> None:
    endpoint = node.process.config.driver.endpoint
    assert endpoint.exists()
    await node.process.stop()
    await node.process.stop()
    assert not endpoint.exists()
