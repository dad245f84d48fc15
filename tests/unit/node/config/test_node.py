"""A node's configuration: what follows from the kubelet's folder, and what is rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.node.config import driver, node
from tonnage.node.config.node import NODE_FILE
from tonnage.storage.pools.config import parse

POOLS = [parse("fake,size=1Gi")]


def test_everything_has_a_default() -> None:
    config = node.merge({}, {}, POOLS, node="n1")

    plugins = Path("/var/lib/kubelet/plugins/csi.tonnage.dev")
    assert config.driver.endpoint == plugins / "csi.sock"
    assert config.driver.registry == Path("/var/lib/kubelet/plugins_registry")
    assert config.driver.state == plugins
    assert config.driver.node_name == "n1"
    assert (config.agent.namespace, config.agent.binding, config.agent.endpoints) == (
        names.SYSTEM_NAMESPACE,
        "agent",
        (),
    )


def test_the_command_line_stands_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("kubelet: /data/kubelet\nbind: controller\nnamespace: storage\ncsiEndpoints: [/run/a.sock]\n")
    file = driver.load(path, NODE_FILE)

    config = node.merge(file, {"bind": "agent", "csi_endpoints": ["unix:///run/b.sock"]}, POOLS, node="n1")

    assert config.driver.endpoint == Path("/data/kubelet/plugins/csi.tonnage.dev/csi.sock")
    assert (config.agent.namespace, config.agent.binding) == ("storage", "agent")
    assert config.agent.endpoints == (Path("/run/b.sock"), Path("/run/a.sock"))


@pytest.mark.parametrize("name", ["endpoint", "registry", "state"])
def test_what_follows_from_the_kubelets_folder_is_not_given(name: str) -> None:
    with pytest.raises(InvalidError, match=f"{name}: for a node it follows from the kubelet's folder"):
        node.merge({name: "/run/x"}, {}, POOLS, node="n1")


def test_the_scope_is_chosen_on_the_command_line_or_in_the_file() -> None:
    assert node.merge({}, {}, POOLS, node="n1").agent.scope == "auto"
    assert node.merge({"scope": "all"}, {}, POOLS, node="n1").agent.scope == "all"
    assert node.merge({"scope": "all"}, {"scope": "label"}, POOLS, node="n1").agent.scope == "label"
    with pytest.raises(InvalidError, match="scope 'some': want auto or label or all"):
        node.merge({"scope": "some"}, {}, POOLS, node="n1")


def test_how_room_is_published_is_chosen_on_the_command_line_or_in_the_file() -> None:
    assert node.merge({}, {}, POOLS, node="n1").agent.capacity == "auto"
    assert node.merge({"capacity": "tiers"}, {}, POOLS, node="n1").agent.capacity == "tiers"
    given = {"capacity": "exact"}
    assert node.merge({"capacity": "tiers"}, given, POOLS, node="n1").agent.capacity == "exact"
    with pytest.raises(InvalidError, match="capacity 'some': want auto or tiers or exact"):
        node.merge({"capacity": "some"}, {}, POOLS, node="n1")


def test_room_is_kept_for_nobody_unless_that_is_said() -> None:
    assert node.merge({}, {}, POOLS, node="n1").agent.starvation_guard == 0
    assert node.merge({"starvation_guard": 3}, {}, POOLS, node="n1").agent.starvation_guard == 3
    assert node.merge({"starvation_guard": 3}, {"starvation_guard": 5}, POOLS, node="n1").agent.starvation_guard == 5
    with pytest.raises(InvalidError, match="starvationGuard -1: want a number of reschedules"):
        node.merge({"starvation_guard": -1}, {}, POOLS, node="n1")


@pytest.mark.parametrize("given", [{}, {"flexvolume": "/plugins"}])
def test_the_agent_serves_classes_of_flexvolumes_where_the_node_serves_flexvolumes(given: dict[str, str]) -> None:
    assert node.merge({}, given, [parse("memory,size=1Gi")], node="n").agent.flexvolume is bool(given)


def test_an_unknown_binder_is_rejected() -> None:
    with pytest.raises(InvalidError, match="bind 'scheduler': want agent or controller"):
        node.merge({"bind": "scheduler"}, {}, POOLS, node="n1")


def test_unknown_fields_are_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("binding: agent\n")
    with pytest.raises(InvalidError, match="unknown field `binding`; there is bind"):
        driver.load(tmp_path / "node.yaml", NODE_FILE)
