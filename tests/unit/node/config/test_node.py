"""A node's configuration: what follows from the kubelet's folder, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tonnage.api import names
from tonnage.errors import Invalid
from tonnage.node.config import driver, node
from tonnage.node.config.node import NodeFile
from tonnage.pools.config import parse

POOLS = [parse("fake,size=1Gi")]


def test_everything_has_a_default() -> None:
    config = node.merge(NodeFile(), NodeFile(), POOLS, node="n1")

    plugins = Path("/var/lib/kubelet/plugins/csi.tonnage.dev")
    assert config.driver.endpoint == plugins / "csi.sock"
    assert config.driver.registry == Path("/var/lib/kubelet/plugins_registry")
    assert config.driver.state == plugins
    assert config.driver.node_name == "n1"
    assert (config.namespace, config.binding, config.endpoints) == (names.SYSTEM_NAMESPACE, "agent", ())


def test_the_command_line_stands_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("kubelet: /data/kubelet\nbind: controller\nnamespace: storage\ncsiEndpoints: [/run/a.sock]\n")
    file = driver.load(path, NodeFile)

    config = node.merge(file, NodeFile(bind="agent", csi_endpoints=["unix:///run/b.sock"]), POOLS, node="n1")

    assert config.driver.endpoint == Path("/data/kubelet/plugins/csi.tonnage.dev/csi.sock")
    assert (config.namespace, config.binding) == ("storage", "agent")
    assert config.endpoints == (Path("/run/b.sock"), Path("/run/a.sock"))


@pytest.mark.parametrize("name", ["endpoint", "registry", "state"])
def test_what_follows_from_the_kubelets_folder_is_not_given(name: str) -> None:
    with pytest.raises(Invalid, match=f"{name}: for a node it follows from the kubelet's folder"):
        node.merge(replace(NodeFile(), **{name: "/run/x"}), NodeFile(), POOLS, node="n1")


def test_the_scope_is_chosen_on_the_command_line_or_in_the_file() -> None:
    assert node.merge(NodeFile(), NodeFile(), POOLS, node="n1").scope == "auto"
    assert node.merge(NodeFile(scope="all"), NodeFile(), POOLS, node="n1").scope == "all"
    assert node.merge(NodeFile(scope="all"), NodeFile(scope="label"), POOLS, node="n1").scope == "label"
    with pytest.raises(Invalid, match="scope 'some': want auto or label or all"):
        node.merge(NodeFile(scope="some"), NodeFile(), POOLS, node="n1")


def test_how_room_is_published_is_chosen_on_the_command_line_or_in_the_file() -> None:
    assert node.merge(NodeFile(), NodeFile(), POOLS, node="n1").capacity == "auto"
    assert node.merge(NodeFile(capacity="tiers"), NodeFile(), POOLS, node="n1").capacity == "tiers"
    given = NodeFile(capacity="exact")
    assert node.merge(NodeFile(capacity="tiers"), given, POOLS, node="n1").capacity == "exact"
    with pytest.raises(Invalid, match="capacity 'some': want auto or tiers or exact"):
        node.merge(NodeFile(capacity="some"), NodeFile(), POOLS, node="n1")


def test_room_is_kept_for_nobody_unless_that_is_said() -> None:
    assert node.merge(NodeFile(), NodeFile(), POOLS, node="n1").starvation_guard == 0
    assert node.merge(NodeFile(starvation_guard=3), NodeFile(), POOLS, node="n1").starvation_guard == 3
    assert (
        node.merge(NodeFile(starvation_guard=3), NodeFile(starvation_guard=5), POOLS, node="n1").starvation_guard == 5
    )
    with pytest.raises(Invalid, match="starvationGuard -1: want a number of reschedules"):
        node.merge(NodeFile(starvation_guard=-1), NodeFile(), POOLS, node="n1")


def test_an_unknown_binder_is_refused() -> None:
    with pytest.raises(Invalid, match="bind 'scheduler': want agent or controller"):
        node.merge(NodeFile(bind="scheduler"), NodeFile(), POOLS, node="n1")


def test_unknown_fields_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("binding: agent\n")
    with pytest.raises(Invalid, match="unknown field `binding`; there is bind"):
        driver.load(tmp_path / "node.yaml", NodeFile)
