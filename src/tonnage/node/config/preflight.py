"""Preflight check of a driver's configuration; read-only."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tonnage.base.errors import HostError, InvalidError, TonnageError, UnavailableError, UnsupportedError
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.io_limits import Throttle
from tonnage.csi.driver.pool_opener import Openings
from tonnage.csi.driver.registration import SUFFIX
from tonnage.csi.server import sockets
from tonnage.host.iolimits import Cgroups
from tonnage.node.config.driver import DriverConfig
from tonnage.storage.content.hosts import FetchPolicy
from tonnage.storage.images.store import is_store
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools import kubelet_disk
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.disk_commitment import commitments
from tonnage.storage.pools.kind import PoolConfig
from tonnage.storage.pools.needs import lacking

log = logging.getLogger(__name__)
_POOL = "pool "


@dataclass(frozen=True)
class PreflightFinding:
    """One checked item.

    fault: why the driver cannot start. warning: the driver starts, but somebody should know.
    """

    what: str
    text: str
    warning: bool = False
    fault: TonnageError | None = None


def check(config: DriverConfig) -> list[PreflightFinding]:
    """Check everything that the configuration names. Blocking; read-only.

    It makes nothing, locks nothing and opens nothing for writing.
    """
    found = [
        _finding("driver", partial(_driver, config)),
        _finding("endpoint", partial(_endpoint, config.endpoint)),
        _finding("state", partial(_state, config.state)),
    ]
    if config.registry is not None:
        found.append(_finding("registry", partial(_registry, config.registry, config.driver_name)))
    if config.metrics is not None:
        warning = config.metrics.open_to_others
        text = f"{config.metrics}{', open to other machines, without a password' if warning else ''}"
        found.append(PreflightFinding("metrics", text, warning=warning))
    found += [_finding("source", partial(_source, path)) for path in config.sources]
    found += [_finding("image store", partial(_image_store, path)) for path in config.image_stores]
    found += [PreflightFinding("fetch", str(host)) for host in config.fetch]
    found.append(_finding("cgroups", partial(_cgroups, config)))
    found.extend(pool(described, config.roots) for described in config.pools)
    found.extend(PreflightFinding("kind", each.renamed, warning=True) for each in config.pools if each.renamed)
    found.extend(PreflightFinding("size", text, warning=True) for text in map(_tiny, config.pools) if text)
    found.extend(_disks(config))
    return found


def require(findings: list[PreflightFinding]) -> None:
    """Raise the first fault among findings.

    A pool that is not available now is no fault while another one is.
    """
    pools = [finding.fault for finding in findings if finding.what.startswith(_POOL)]
    for finding in findings:
        if finding.fault is not None and not (may_come(finding) and None in pools):
            raise finding.fault


def warn(findings: list[PreflightFinding]) -> None:
    """Log the warnings of a driver that starts."""
    for finding in findings:
        if finding.warning and finding.fault is None:
            log.warning("configuration has a warning what=%s text=%s", finding.what, finding.text)


def may_come(finding: PreflightFinding) -> bool:
    """Return whether a fault is a missing disk, not a wrong description."""
    return finding.what.startswith(_POOL) and isinstance(finding.fault, UnavailableError | HostError)


def _tiny(config: PoolConfig) -> str:
    """Return a warning about the given size, or ""."""
    if not config.kind.is_real or not 0 < config.size < pool_config.LEAST:
        return ""
    return f"pool {config.name}: {config.size} bytes hold no volume: write the size with its unit, as 10Gi"


def _finding(what: str, check: Callable[[], tuple[str, bool]]) -> PreflightFinding:
    """Run one check, which returns its text and whether that is a warning; what it raises is the fault."""
    try:
        text, warning = check()
    except TonnageError as failure:
        return PreflightFinding(what, str(failure), fault=failure)
    return PreflightFinding(what, text, warning)


def _driver(config: DriverConfig) -> tuple[str, bool]:
    make(config)
    return f"{config.driver_name} on node {config.node_name} ({config.topology_key}={config.node_name})", False


def make_pools(config: DriverConfig, disks: Disks) -> dict[str, Pool]:
    """Return the pools by name, not yet open. Raises: InvalidError."""
    return {found.name: make_pool(found, config.roots, disks) for found in config.pools}


def make(config: DriverConfig, pools: Mapping[str, Pool] | None = None) -> Driver:
    """Return a driver over its pools, which are made where none are given.

    Raises: InvalidError.
    """
    pools = make_pools(config, Disks()) if pools is None else pools
    throttle = Throttle(Cgroups(config.cgroups), group=config.io_cgroup)
    ready = partial(_check_disk, {found.name: found for found in config.pools}, config.roots)
    return Driver(
        config.node_name,
        pools,
        config.state,
        name=config.driver_name,
        topology_key=config.topology_key,
        max_volumes=config.max_volumes,
        roots=config.roots,
        sources=config.sources,
        fetch=FetchPolicy(config.fetch),
        image_stores=config.image_stores,
        throttle=throttle,
        openings=Openings(pools, opened=lambda pool: throttle.restore([pool]), ready=ready),
    )


def make_pool(config: PoolConfig, kubelet: Sequence[Path], disks: Disks) -> Pool:
    """Return a pool, not yet open. Raises: InvalidError."""
    return pool_config.make(_settled(config, kubelet), disks=disks)


def _check_disk(configs: Mapping[str, PoolConfig], kubelet: Sequence[Path], name: str) -> None:
    kubelet_disk.check(configs[name], kubelet)


def _settled(pool: PoolConfig, kubelet: Sequence[Path]) -> PoolConfig:
    """Return a pool's configuration with its min free.

    A pool with a disk of its own needs none: it does not open without that disk.
    """
    try:
        return kubelet_disk.settle(pool, kubelet)
    except UnavailableError:
        return pool


def _endpoint(path: Path) -> tuple[str, bool]:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return str(path), False
    except OSError as failure:
        raise InvalidError(f"endpoint {path}: {failure.strerror}") from failure
    if not stat.S_ISSOCK(mode):
        raise InvalidError(f"{path} exists and is not a socket: remove it or choose another path")
    return f"{path} (there is a socket: it is replaced if no program answers)", False


def _state(path: Path) -> tuple[str, bool]:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return f"{path} (made when it is needed)", False
    except OSError as failure:
        raise HostError(f"state folder {path}: {failure.strerror}") from failure
    if not stat.S_ISDIR(mode):
        raise InvalidError(f"state folder {path} is not a directory")
    return str(path), False


def _registry(path: Path, driver: str) -> tuple[str, bool]:
    sockets.check_length(path / f"{driver}{SUFFIX}")
    if not path.is_dir():
        why = "is not a directory" if path.exists() else "does not exist"
        raise InvalidError(
            f"registry {path} {why}: name the kubelet's folder plugins_registry, or leave --registry out"
        )
    return str(path), False


def _image_store(path: Path) -> tuple[str, bool]:
    if not is_store(path):
        return f"{path} (no image store yet: volumes get its images once it is one)", True
    return str(path), False


def _source(path: Path) -> tuple[str, bool]:
    """Check a trusted source directory.

    A symlink in its path is a fault: others could change its target.
    """
    real = Path(os.path.realpath(path))
    if real != path:
        raise InvalidError(f"source {path} has a symlink in it: name {real}")
    if not path.is_dir():
        why = "is not a directory" if path.exists() else "does not exist"
        raise InvalidError(f"source {path} {why}: make it, or leave it out")
    return str(path), path == path.parent


def _cgroups(config: DriverConfig) -> tuple[str, bool]:
    """Check cgroups.

    A machine that cannot limit IO serves all volumes without limits.
    """
    groups = Cgroups(config.cgroups)
    try:
        top = groups.top()
        if config.io_cgroup:
            groups.named(config.io_cgroup)
    except UnsupportedError as reason:
        return str(reason), bool(config.io_cgroup)
    text = f"IO can be limited in {top.path} (cgroup v{2 if top.v2 else 1})"
    return f"{text}, of {config.io_cgroup} where no pod is named" if config.io_cgroup else text, False


def pool(config: PoolConfig, kubelet: Sequence[Path]) -> PreflightFinding:
    """Check one pool. Blocking."""
    return _finding(f"{_POOL}{config.name}", partial(_settled_pool, config, kubelet))


def _settled_pool(config: PoolConfig, kubelet: Sequence[Path]) -> tuple[str, bool]:
    found, remark = look(kubelet_disk.settle(config, kubelet)), kubelet_disk.remark(config, kubelet)
    return f"{found}; {remark}" if remark else found, bool(remark)


def _disks(config: DriverConfig) -> Iterator[PreflightFinding]:
    """Check whether the disks hold what their pools may allocate in all."""
    settled = []
    for pool in config.pools:
        with suppress(InvalidError, UnavailableError):
            settled.append(kubelet_disk.settle(pool, config.roots))
    for disk in commitments(settled):
        yield PreflightFinding(f"disk of {disk.disk}", str(disk), warning=not disk.fits)


def look(pool: PoolConfig) -> str:
    """Describe what is at a pool's place. Blocking; read-only.

    It makes nothing, locks nothing and opens nothing for writing.

    Raises: InvalidError; UnavailableError (there is no such pool); HostError (the machine lacks a requirement).
    """
    pool_config.make(pool)
    found = pool.kind.look(pool) if pool.kind.looks_first else ""
    if pool.kind.is_real and os.geteuid() != 0:
        raise HostError(f"pool {pool.name}: {pool.kind} pools mount file systems, which takes root: run it as root")
    for lack in lacking(pool):
        raise HostError(f"pool {pool.name}: {pool.kind} pools need {lack}")
    return str(found or pool.kind.look(pool))
