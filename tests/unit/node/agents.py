"""Agents of tests: their configuration, and what they tell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tonnage.node.config.agent import AgentConfig

AllEvents = Callable[[], Awaitable[list[tuple[str, str, str]]]]


def agent_config(node: str, cluster: str, endpoints: tuple[Path, ...] = (), **more: Any) -> AgentConfig:
    """An agent that works only when something happens, unless told otherwise."""
    usual = {"scope": "label", "capacity": "exact", "poll": 0, "sweep_every": 0}
    return AgentConfig(node, cluster_uid=cluster, endpoints=endpoints, **{**usual, **more})
