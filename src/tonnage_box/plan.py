"""Plan of a box, checked before anything is touched: nodes, pools, requirements of the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from tonnage.base.errors import HostError, InvalidError, NotFoundError
from tonnage.csi.server.sockets import check_length
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.node.inline.config import parse_inlines
from tonnage.node.inline.sources import kind_of
from tonnage.provisioning.capacity import tier
from tonnage.storage.content.hosts import parse_host
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.disk_commitment import DiskCommitment, commitments
from tonnage.storage.pools.kind import PoolConfig
from tonnage.storage.pools.needs import lacking
from tonnage_box.bootstrap import class_of
from tonnage_box.data_dir import DataFolder, Settings, no_cluster

DEFAULT_POOL_SIZE = "10Gi"
DEFAULT_POOL_NAME = "scratch"
RUNTIMES = ("bwrap", "none")
_WITHOUT = "try it without: --pool fake --runtime none"
_WAY_OUT = f"run it as root, or {_WITHOUT}"


@dataclass(frozen=True)
class BoxPlan:
    """A box that can be started.

    settings: to be stored in the data folder; nodes: name -> its pools; endpoints: name -> CSI sockets of external
    drivers; max_pods: pods per node; server: host and port of the API server, once it listens; disks: those under the
    pools of all nodes.
    """

    settings: Settings
    nodes: dict[str, list[PoolConfig]]
    warnings: list[str] = field(default_factory=list)
    endpoints: dict[str, list[Path]] = field(default_factory=dict)
    max_pods: int = 110
    server: tuple[str, int] | None = None
    disks: Disks = field(default_factory=Disks, compare=False)

    @property
    def drivers(self) -> list[str]:
        """Names of the CSI drivers that tonnage serves on each node."""
        return [names.DRIVER, *(names.COMPAT_DRIVERS[word] for word in self.settings.compat)]

    @property
    def provisioners(self) -> list[str]:
        """Provisioners of classes whose volumes these drivers make."""
        return [*self.drivers, *(names.FLEX_PROVISIONERS if self.settings.flexvolume else ())]

    @property
    def capacity(self) -> str:
        """How capacity is published, "tiers" or "exact", from the known number of nodes."""
        chosen = self.settings.capacity
        return chosen if chosen != "auto" else "tiers" if len(self.nodes) > tier.AUTO_ABOVE else "exact"

    @property
    def summary(self) -> str:
        """One line for people."""
        pools = next(iter(self.nodes.values()))
        each = " and ".join(f"{_size(p)} ({p.kind})" for p in pools)
        count = len(self.nodes)
        return f"{count} node{'s' * (count > 1)}, {each}{' each' * (count > 1)}, runtime {self.settings.runtime}"


def _size(pool: PoolConfig) -> str:
    return from_bytes(pool.size) if pool.size else "what the disk has" if pool.has_size else "whole disks"


def plan(data: DataFolder, settings: Settings, *, pool_size: str = "", csi_endpoints: Sequence[str] = ()) -> BoxPlan:
    """Check the settings against the machine, the data folder and the disks below the pools.

    pool_size: for pools that give no size of their own. csi_endpoints: `[NODE=]SOCKET`, not stored. Raises
    InvalidError (a setting), HostError (the machine lacks something).
    """
    templates = _templates(settings, pool_size)
    _check_machine(settings.runtime, templates)
    _check_sources(settings.sources)
    _check_inline(settings.inline)
    for host in settings.fetch:
        parse_host(host)
    _check_new(data, templates)
    _check_saved(data, settings, templates)
    nodes = _nodes(data, settings.nodes, templates)
    endpoints = external_sockets(csi_endpoints, list(nodes))
    saved = msgspec.structs.replace(settings, pools=[str(pool) for pool in templates])
    all_pools = [pool for pools in nodes.values() for pool in pools]
    disks = commitments(all_pools)
    is_more = {pool.name for pool in all_pools if pool.limits.ratio > 1}
    warnings = [_warning(disk, is_more) for disk in disks if not disk.fits]
    return BoxPlan(saved, nodes, [*_about_fakes(templates), *warnings], endpoints)


def external_sockets(texts: Sequence[str], nodes: Sequence[str]) -> dict[str, list[Path]]:
    """Node -> sockets, out of `[NODE=]SOCKET`. NODE may be left out when there is one node. Raises: InvalidError.

    A socket may be written as a path or as CSI_ENDPOINT is (`unix:///run/driver.sock`); it need not exist yet.
    """
    found: dict[str, list[Path]] = {}
    users: dict[Path, str] = {}
    for text in texts:
        node, socket = _external_socket(text, nodes)
        if socket in users:
            raise InvalidError(
                f"--csi-endpoint {text}: {socket} already serves {users[socket]}; a driver serves one node"
            )
        users[socket] = node
        found.setdefault(node, []).append(socket)
    return found


def _external_socket(text: str, nodes: Sequence[str]) -> tuple[str, Path]:
    before, equals, after = text.partition("=")
    if not equals or "/" in before:
        before, after = "", text
    if not before and len(nodes) > 1:
        raise InvalidError(
            f"--csi-endpoint {text}: there are {len(nodes)} nodes, say which one the driver serves: {nodes[0]}={text}"
        )
    node = before or nodes[0]
    if node not in nodes:
        raise InvalidError(f"--csi-endpoint {text}: there is no node {node!r}, only {', '.join(nodes)}")
    path = after.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if not path or "\0" in path:
        raise InvalidError(f"--csi-endpoint {text!r}: want [NODE=]SOCKET, the path of the driver's unix socket")
    socket = Path(os.path.abspath(path))
    check_length(socket)
    return node, socket


def what_stays(settings: Settings | None) -> str:
    """What remains after the cluster has ended, as subject and verb of a sentence."""
    pools = _templates(settings or Settings(), "")
    fakes = [pool.name for pool in pools if not pool.kind.is_real]
    if not fakes:
        return "objects and volumes stay"
    if len(fakes) == len(pools):
        return "objects stay, but volumes of fake pools are gone"
    return f"objects and volumes stay, but those of fake pools ({', '.join(fakes)}) are gone"


def _about_fakes(pools: Sequence[PoolConfig]) -> list[str]:
    fakes = [pool.name for pool in pools if not pool.kind.is_real]
    about = (
        f"fake pools ({', '.join(fakes)}) only count: their volumes are plain folders without a limit, and are gone "
        "when the cluster ends; never use them for data"
    )
    return [*(pool.renamed for pool in pools if pool.renamed), *([about] if fakes else [])]


def saved_nodes(data: DataFolder) -> dict[str, list[PoolConfig]]:
    """Node -> pools of the cluster in a data folder; checks nothing. Raises: NotFoundError."""
    settings = data.settings()
    if settings is None:
        raise NotFoundError(
            f"{no_cluster(data.path)}; name a box's folder with --data, or a driver with --endpoint, --config or --pool"
        )
    return _nodes(data, settings.nodes, _templates(settings, ""))


def _nodes(data: DataFolder, count: int, templates: list[PoolConfig]) -> dict[str, list[PoolConfig]]:
    single = [pool.only_one_node for pool in templates if pool.only_one_node]
    if single and (count > 1 or len(set(single)) < len(single)):
        raise InvalidError(f"{single[0]} can be the pool of one node only: start one with --nodes 1")
    names = [f"node-{n}" for n in range(1, count + 1)]
    return {name: [_on(data, name, pool) for pool in templates] for name in names}


def _templates(settings: Settings, pool_size: str) -> list[PoolConfig]:
    size = _checked_size(pool_size or DEFAULT_POOL_SIZE)
    texts = settings.pools or [f"image,name={DEFAULT_POOL_NAME},sparse=yes"]
    found = [pool_config.parse(text) for text in texts]
    pools = [pool if pool.size or not pool.has_size else replace(pool, size=size) for pool in found]
    names = [pool.name for pool in pools]
    if len(set(names)) != len(names):
        raise InvalidError(f"two pools are named alike ({', '.join(names)}): give each a name=")
    return pools


def _checked_size(text: str) -> int:
    try:
        size = to_bytes(text)
    except InvalidError as reason:
        raise InvalidError(f"--pool-size: {reason}") from None
    if size < pool_config.LEAST:
        raise InvalidError(f"--pool-size {text}: {_too_small(size)}")
    return size


def _too_small(size: int) -> str:
    least = from_bytes(pool_config.LEAST)
    return f"a pool of {size} bytes holds no volume, want at least {least}; write a number with its unit, as 10Gi"


def _check_new(data: DataFolder, pools: list[PoolConfig]) -> None:
    """Check rules for new pools; pools of an existing cluster stay as they are. Raises: InvalidError."""
    settings = data.settings()
    saved = {pool_config.parse(text).name for text in (settings.pools if settings else ())}
    for number, pool in enumerate(pools):
        if pool.name in saved:
            continue
        if 0 < pool.size < pool_config.LEAST:
            raise InvalidError(f"--pool {pool.written}: size={pool.size}: {_too_small(pool.size)}")
        for taken, first in ((names.SCRATCH_CLASS, True), (names.IMMEDIATE_CLASS, False)):
            if class_of(pool.name) == taken and not (first and number == 0):
                hint = "make it the first pool, or give it another name=" if first else "give it another name="
                raise InvalidError(f"--pool: pool {pool.name}: class {taken} of the box means the first pool; {hint}")


def _on(data: DataFolder, node: str, pool: PoolConfig) -> PoolConfig:
    """The pool on one node: each has a folder of its own, also where the user named one for all."""
    if not pool.kind.has_directory:
        return pool
    return pool.at(pool.where / node if pool.where else data.node(node) / "pools" / pool.name)


def _check_machine(runtime: str, pools: list[PoolConfig]) -> None:
    if runtime not in RUNTIMES:
        raise InvalidError(f"runtime {runtime!r}: want one of {', '.join(RUNTIMES)}")
    real = [pool.kind.name for pool in pools if pool.kind.is_real]
    if real and os.geteuid() != 0:
        raise HostError(f"{' and '.join(real)} pools mount file systems, which takes root: {_WAY_OUT}")
    if runtime == "bwrap" and os.geteuid() != 0:
        raise HostError(f"running containers with volumes takes root: {_WAY_OUT}")
    check_programs(runtime, pools)


def check_programs(runtime: str, pools: Sequence[PoolConfig]) -> None:
    """Check the kernel's features and the machine's programs. Raises: HostError."""
    if runtime == "bwrap" and shutil.which("bwrap") is None:
        raise HostError("bwrap not found (Debian: apt-get install bubblewrap); or start with --runtime none")
    for pool in pools:
        for lack in lacking(pool):
            raise HostError(f"{pool.kind} pools need {lack}; or {_WITHOUT}")


def _check_inline(texts: Sequence[str]) -> None:
    for config in parse_inlines(texts):
        kind_of(config)
    if texts and os.geteuid() != 0:
        raise HostError("--inline: inline drivers mount memory and folders, which takes root: run it as root")


def _check_sources(sources: Sequence[str]) -> None:
    """Folders that are named to be trusted: what a symlink in a path leads to could be changed by others."""
    for text in sources:
        if not os.path.isdir(text):
            raise InvalidError(
                f"--source {text}: there is no such folder; content of folders that are there can be allowed"
            )
        if (real := os.path.realpath(text)) != text:
            raise InvalidError(f"--source {text}: want the folder itself, {real}")


def _check_saved(data: DataFolder, settings: Settings, pools: list[PoolConfig]) -> None:
    saved = data.settings()
    if saved is None:
        return
    if settings.nodes < saved.nodes:
        raise InvalidError(
            f"the cluster in {data.path} has {saved.nodes} nodes; with {settings.nodes} the volumes of the others "
            f"would be out of reach. Start it with {saved.nodes}, or remove it: tonnage down --purge --data {data.path}"
        )
    before = {(p.name, p.kind, p.place) for p in map(pool_config.parse, saved.pools)}
    if missing := sorted(name for name, *_ in before - {(p.name, p.kind, p.place) for p in pools}):
        raise InvalidError(
            f"the cluster in {data.path} has pool {', '.join(missing)}, as {'; '.join(saved.pools)}: it can get "
            f"more pools, not lose one. Start it without --pool, or remove it: tonnage down --purge --data {data.path}"
        )


def _warning(disk: DiskCommitment, overcommitted: Set[str]) -> str:
    if overcommitted.isdisjoint(disk.pools):
        return (
            f"the pools are {from_bytes(disk.reserved)} together, the disk under {disk.disk} has "
            f"{_rough(disk.free)} free: they publish no more than that. overcommit=yes in --pool lets them."
        )
    return (
        f"overcommitted: the pools may allocate {from_bytes(disk.reserved)} together, the disk under "
        f"{disk.disk} has {_rough(disk.free)} free. Files grow as they are written; "
        "when the disk is full, writes fail before a volume is."
    )


def _rough(number: int) -> str:
    return f"{number / 1024**3:.0f}Gi" if number >= 1024**3 else f"{number // 1024**2}Mi"
