"""Configuration of a node: its driver's, and the agent's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tonnage.api import names
from tonnage.capacity import tier
from tonnage.errors import Invalid
from tonnage.node.config import driver as config_driver
from tonnage.node.config.driver import DriverConfig, DriverFile
from tonnage.node.watch_scope import SCOPES
from tonnage.pools.config import PoolConfig

KUBELET = Path("/var/lib/kubelet")
BINDINGS = ("agent", "controller")
LEVELS = ("info", "debug", "warning", "error")


class NodeFile(DriverFile):
    """Fields of a node's file.

    A driver's fields without endpoint and registry, which follow from the kubelet's directory.
    """

    kubelet: str = ""
    namespace: str = ""
    bind: str = ""
    scope: str = ""
    capacity: str = ""
    starvation_guard: int = 0
    csi_endpoints: list[str] = []
    log_level: str = ""


@dataclass(frozen=True)
class NodeConfig:
    """A node's configuration.

    namespace: of its capacity objects. binding: who binds claims, `agent` or `controller` (the PV controller). scope:
    the watch scope. capacity: how capacity is published, exact or in tiers. endpoints: CSI sockets of external drivers.
    log_level: one of LEVELS. starvation_guard: reschedules of a pod after which it reserves capacity
    for it, 0 for never.
    """

    driver: DriverConfig
    namespace: str = names.SYSTEM_NAMESPACE
    binding: str = "agent"
    scope: str = "auto"
    capacity: str = tier.MODES[0]
    endpoints: tuple[Path, ...] = ()
    log_level: str = LEVELS[0]
    starvation_guard: int = 0


def merge(file: NodeFile, given: NodeFile, pools: Sequence[PoolConfig], *, node: str) -> NodeConfig:
    """Merge the command line over the file.

    pools: of both. node: the node's name where none is given.

    Raises: Invalid.
    """
    for fields in (file, given):
        for name in ("endpoint", "registry", "state", "kubelet_root"):
            if getattr(fields, name):
                raise Invalid(f"{name}: for a node it follows from the kubelet's folder: name that one, as kubelet")
    kubelet = config_driver.absolute("kubelet", given.kubelet or file.kubelet or str(KUBELET))
    driver_name = given.driver_name or file.driver_name or names.DRIVER
    plugins = kubelet / "plugins" / driver_name
    given = msgspec.structs.replace(
        given,
        endpoint=str(plugins / "csi.sock"),
        registry=str(kubelet / "plugins_registry"),
        state=str(plugins),
        kubelet_root=str(kubelet),
    )
    driver = config_driver.merge(file, given, pools, node=node)
    binding = given.bind or file.bind or BINDINGS[0]
    if binding not in BINDINGS:
        raise Invalid(f"bind {binding[:40]!r}: want {' or '.join(BINDINGS)}")
    scope = given.scope or file.scope or SCOPES[0]
    if scope not in SCOPES:
        raise Invalid(f"scope {scope[:40]!r}: want {' or '.join(SCOPES)}")
    capacity = given.capacity or file.capacity or tier.MODES[0]
    if capacity not in tier.MODES:
        raise Invalid(f"capacity {capacity[:40]!r}: want {' or '.join(tier.MODES)}")
    endpoints = [config_driver.socket_path(text) for text in (*given.csi_endpoints, *file.csi_endpoints)]
    namespace = given.namespace or file.namespace or names.SYSTEM_NAMESPACE
    level = given.log_level or file.log_level or LEVELS[0]
    if level not in LEVELS:
        raise Invalid(f"logLevel {level[:40]!r}: want {' or '.join(LEVELS)}")
    starvation_guard = given.starvation_guard or file.starvation_guard
    if starvation_guard < 0:
        raise Invalid(f"starvationGuard {starvation_guard}: want a number of reschedules, 0 for never")
    return NodeConfig(driver, namespace, binding, scope, capacity, tuple(endpoints), level, starvation_guard)
