"""Configuration of a node: its driver's, its agent's, and what both follow from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from tonnage.base import option
from tonnage.base.errors import InvalidError
from tonnage.base.option import Option, Values
from tonnage.kubernetes.api import names
from tonnage.node.config import declared_pools
from tonnage.node.config import driver as config_driver
from tonnage.node.config.agent import AgentConfig
from tonnage.node.config.declared_pools import DeclaredPool, DeclaredPoolEntry
from tonnage.node.config.driver import DriverConfig
from tonnage.node.inline.config import InlineConfig, parse_inlines
from tonnage.storage.pools.kind import PoolConfig

KUBELET = Path("/var/lib/kubelet")
LEVELS = ("info", "debug", "warning", "error")
_FOLLOWING = ("endpoint", "registry", "state", "kubelet_root")
"""A driver's options that follow from the kubelet's directory."""


@dataclass(frozen=True)
class NodeConfig:
    """A node's configuration.

    kubelet: the kubelet's directory. log_level: one of LEVELS. inline: the inline drivers. flexvolume: the kubelet's
    folder of FlexVolume drivers, None to serve none. make_pools: whether the
    start may run what is missing of the pools in declare.
    """

    driver: DriverConfig
    agent: AgentConfig
    kubelet: Annotated[
        Path,
        Option(f"the kubelet's folder (default: {KUBELET})", "DIR", parse=partial(config_driver.absolute, "kubelet")),
    ] = KUBELET
    log_level: Annotated[str, Option("default: info", choices=LEVELS)] = LEVELS[0]
    inline: Annotated[
        tuple[InlineConfig, ...],
        Option(
            "an inline driver: content made for a pod, as node-labels; repeatable",
            "KIND[,key=value...]",
            written=list[str],
            parse=parse_inlines,
        ),
    ] = ()
    flexvolume: Annotated[
        Path | None,
        Option(
            "serve manifests with flexVolume: install our driver in this folder, the kubelet's --volume-plugin-dir",
            "DIR",
            parse=partial(config_driver.absolute, "flexvolume"),
        ),
    ] = None
    make_pools: Annotated[
        bool,
        Option(
            "make the pools that the file declares, on empty devices only (--check shows the commands)", written=bool
        ),
    ] = False
    declare: tuple[DeclaredPool, ...] = ()


DECLARE = {"declare": list[DeclaredPoolEntry]}
"""Key of a node's file that no option has: the devices of its pools."""
NODE_FILE = option.file_type("NodeFile", [DriverConfig, AgentConfig, NodeConfig], **config_driver.POOLS, **DECLARE)


def merge(file: Values, given: Values, pools: Sequence[PoolConfig], *, node: str) -> NodeConfig:
    """Merge the command line over the file.

    pools: of both. node: the node's name where none is given.

    Raises: InvalidError.
    """
    for name in _FOLLOWING:
        if file.get(name) or given.get(name):
            raise InvalidError(f"{name}: for a node it follows from the kubelet's folder: name that one, as kubelet")
    own = option.read(NodeConfig, given, file)
    kubelet = own.get("kubelet", KUBELET)
    plugins = kubelet / "plugins" / (given.get("driver_name") or file.get("driver_name") or names.DRIVER)
    values = (f"{plugins}/csi.sock", f"{kubelet}/plugins_registry", str(plugins), str(kubelet))
    following = dict(zip(_FOLLOWING, values, strict=True))
    driver = config_driver.merge(file, {**given, **following}, pools, node=node)
    agent = option.read(AgentConfig, given, file)
    declare = declared_pools.read(file.get("declare", ()), driver.pools)
    flexvolume = own.get("flexvolume") is not None
    following_agent = {
        "startup_taint": (driver.driver_name,),
        "kubelet": kubelet,
        "flexvolume": flexvolume,
        "state": driver.state,
    }
    node_agent = AgentConfig(driver.node_name, **following_agent, **agent)
    return NodeConfig(driver, node_agent, declare=declare, **own)
