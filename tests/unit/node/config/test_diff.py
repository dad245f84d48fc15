"""What may change while a node serves, decided without a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tonnage.node.config import diff, node
from tonnage.node.config.agent import AgentConfig
from tonnage.node.config.diff import Differences, compare
from tonnage.node.config.driver import DriverConfig
from tonnage.node.config.node import NodeConfig
from tonnage.storage.pools.config import parse

A, B = "image:/pools/a,name=a", "image:/pools/b,name=b"


def config(*pools: str, **more: str | int | list[str]) -> NodeConfig:
    """A node's configuration with those pools."""
    return node.merge({}, more, [parse(pool) for pool in pools or (A,)], node="n1")


def test_nothing_differs_from_itself() -> None:
    assert compare(config(A, B), config(A, B)) == Differences(added=[], removed=[], bounds=[], rejected=[])


def test_pools_come_and_go() -> None:
    found = compare(config(A), config(A, B))
    assert ([p.name for p in found.added], found.removed, found.rejected) == (["b"], [], [])
    found = compare(config(A, B), config(A))
    assert (found.added, [p.name for p in found.removed], found.rejected) == ([], ["b"], [])


@pytest.mark.parametrize(
    "option", ["size=2Gi", "overcommit=2", "keep=1Gi", "rootfs=yes", "eraserate=1Mi", "sparse=yes", "inline=1Gi"]
)
def test_bounds_may_change(option: str) -> None:
    found = compare(config(A), config(f"{A},{option}"))
    assert ([str(p) for p in found.bounds], found.rejected) == ([str(parse(f"{A},{option}"))], [])


@pytest.mark.parametrize(
    "other", ["image:/pools/other,name=a", "quota:/pools/a,name=a", "lvm:vg0,name=a", "pmem:region0,name=a"]
)
def test_a_pool_cannot_become_another_one_under_its_name(other: str) -> None:
    found = compare(config(A), config(other))
    assert (found.added, found.removed, found.bounds) == ([], [], [])
    (sentence,) = found.rejected
    assert sentence.startswith(f"pool a is {parse(A)} and cannot become {parse(other)}: ")
    assert "put it back" in sentence


def test_the_default_pool_stays_until_a_restart() -> None:
    for wanted in (config(B, A), config(B)):
        found = compare(config(A, B), wanted)
        assert found.removed == []
        (sentence,) = found.rejected
        assert "classes that name none; that stays a" in sentence
        assert "restart" in sentence


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("nodeName", lambda: config(node_name="n2")),
        ("driverName", lambda: config(driver_name="other.example.com")),
        ("topologyKey", lambda: config(topology_key="example.com/node")),
        ("maxVolumes", lambda: config(max_volumes=5)),
        ("kubelet", lambda: config(kubelet="/data/kubelet")),
        ("sources", lambda: config(sources=["/srv"])),
        ("cgroups", lambda: config(cgroups="/cg")),
        ("ioCgroup", lambda: config(io_cgroup="x.slice")),
        ("namespace", lambda: config(namespace="other")),
        ("bind", lambda: config(bind="controller")),
        ("scope", lambda: config(scope="all")),
        ("csiEndpoints", lambda: config(csi_endpoints=["/run/b.sock"])),
    ],
)
def test_what_is_read_at_the_start_needs_a_restart(field: str, change: Callable[[], NodeConfig]) -> None:
    found = compare(config(), change())
    assert replace(found, rejected=()) == Differences(added=[], removed=[], bounds=[])
    assert [s.split(" ")[0] for s in found.rejected] == ({"driverName": ["kubelet", "driverName"]}.get(field, [field]))
    assert all(diff.RESTART in sentence for sentence in found.rejected)


def test_metrics_and_the_log_may_change() -> None:
    found = compare(config(), config(metrics="9100", log_level="debug"))
    assert (found.metrics, found.level, found.rejected) == (True, True, [])


def test_no_field_is_forgotten() -> None:
    """One that is new is rejected with its name, until somebody says that it may change."""
    now = config()
    for part in (now, now.agent, now.driver):
        copied = {"node_name", "startup_taint"} if part is now.agent else set()
        for name in {f.name for f in fields(part)} - {"driver", "agent", "log_level", "pools", "metrics"} - copied:
            changed = replace(part, **{name: ("something", "else")})  # type: ignore[arg-type]
            assert compare(now, _with(now, changed)).rejected, name
    assert Path("/pools/a") == now.driver.pools[0].where


def _with(now: NodeConfig, part: NodeConfig | AgentConfig | DriverConfig) -> NodeConfig:
    if isinstance(part, NodeConfig):
        return part
    return replace(now, agent=part) if isinstance(part, AgentConfig) else replace(now, driver=part)
