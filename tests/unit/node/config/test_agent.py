"""The agent's options, by the file and the command line."""

from __future__ import annotations

import pytest

from tonnage.base.errors import InvalidError
from tonnage.base.option import read
from tonnage.kubernetes.api import names
from tonnage.node.config.agent import AgentConfig


@pytest.mark.parametrize(
    ("name", "field", "default", "other"),
    [
        ("bind", "binding", "agent", "controller"),
        ("scope", "scope", "auto", "all"),
        ("capacity", "capacity", "auto", "exact"),
        ("starvation_guard", "starvation_guard", 0, 3),
        ("namespace", "namespace", names.SYSTEM_NAMESPACE, "storage"),
    ],
)
def test_an_option_is_given_or_has_its_default(name: str, field: str, default: object, other: object) -> None:
    assert getattr(AgentConfig("n1"), field) == default
    assert read(AgentConfig, {name: other}) == {field: other}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bind": "me"}, "bind 'me': want agent or controller"),
        ({"scope": "some"}, "scope 'some': want auto or label or all"),
        ({"capacity": "some"}, "capacity 'some': want auto or tiers or exact"),
        ({"starvation_guard": -1}, "starvationGuard -1: want a number of reschedules, 0 for never"),
        ({"csi_endpoints": ["x"]}, "endpoint 'x': want a unix socket with an absolute path"),
    ],
)
def test_a_wrong_value_is_rejected(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        read(AgentConfig, values)


def test_the_scope_of_its_objects_is_the_nodes() -> None:
    scope = AgentConfig("n1", cluster_uid="now", former_clusters=("before",)).node_scope
    assert (scope.node, scope.cluster_uid, scope.former) == ("n1", "now", frozenset({"before"}))
