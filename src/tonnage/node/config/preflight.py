"""Preflight check of a driver's configuration; read-only."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.io_limits import Throttle
from tonnage.csi.driver.pool_opener import Openings
from tonnage.csi.driver.registration import SUFFIX
from tonnage.csi.server import sockets
from tonnage.errors import HostError, InvalidError, TonnageError, UnavailableError, UnsupportedError
from tonnage.host.iolimits import Cgroups
from tonnage.node.config import preflight_pool
from tonnage.node.config.driver import DriverConfig
from tonnage.pools import config as pool_config
from tonnage.pools import kubelet_disk
from tonnage.pools.config import PoolConfig
from tonnage.pools.core.pool import Pool

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
    found = [_driver(config), _endpoint(config.endpoint), _state(config.state)]
    if config.registry is not None:
        found.append(_registry(config.registry, config.driver_name))
    if config.metrics is not None:
        warning = config.metrics.open_to_others
        text = f"{config.metrics}{', open to other machines, without a password' if warning else ''}"
        found.append(PreflightFinding("metrics", text, warning=warning))
    found.extend(map(_source, config.sources))
    found.append(_cgroups(config))
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
    if config.kind == "fake" or not 0 < config.size < pool_config.LEAST:
        return ""
    return f"pool {config.name}: {config.size} bytes hold no volume: write the size with its unit, as 10Gi"


def _fault(what: str, failure: TonnageError) -> PreflightFinding:
    return PreflightFinding(what, str(failure), fault=failure)


def _driver(config: DriverConfig) -> PreflightFinding:
    try:
        make(config)
    except TonnageError as failure:
        return _fault("driver", failure)
    key = f"{config.topology_key}={config.node_name}"
    return PreflightFinding("driver", f"{config.driver_name} on node {config.node_name} ({key})")


def make_pools(config: DriverConfig) -> dict[str, Pool]:
    """Return the pools by name, not yet open. Raises InvalidError."""
    return {found.name: make_pool(found, config.roots) for found in config.pools}


def make(config: DriverConfig, pools: Mapping[str, Pool] | None = None) -> Driver:
    """Return a driver over its pools, which are made where none are given.

    Raises: Invalid.
    """
    pools = make_pools(config) if pools is None else pools
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
        throttle=throttle,
        openings=Openings(pools, opened=lambda pool: throttle.restore([pool]), ready=ready),
    )


def make_pool(config: PoolConfig, kubelet: Sequence[Path]) -> Pool:
    """Return a pool, not yet open. Raises InvalidError."""
    return pool_config.make(_settled(config, kubelet))


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


def _endpoint(path: Path) -> PreflightFinding:
    try:
        mode = os.lstat(path).st_mode
    except OSError as failure:
        if failure.errno == errno.ENOENT:
            return PreflightFinding("endpoint", f"{path}")
        return _fault("endpoint", InvalidError(f"endpoint {path}: {failure.strerror}"))
    if not stat.S_ISSOCK(mode):
        return _fault("endpoint", InvalidError(f"{path} exists and is not a socket: remove it or choose another path"))
    return PreflightFinding("endpoint", f"{path} (there is a socket: it is replaced if no program answers)")


def _state(path: Path) -> PreflightFinding:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return PreflightFinding("state", f"{path} (made when it is needed)")
    except OSError as failure:
        return _fault("state", HostError(f"state folder {path}: {failure.strerror}"))
    if not stat.S_ISDIR(mode):
        return _fault("state", InvalidError(f"state folder {path} is not a directory"))
    return PreflightFinding("state", f"{path}")


def _registry(path: Path, driver: str) -> PreflightFinding:
    try:
        sockets.check_length(path / f"{driver}{SUFFIX}")
    except InvalidError as failure:
        return _fault("registry", failure)
    if not path.is_dir():
        why = "is not a directory" if path.exists() else "is not there"
        text = f"registry {path} {why}: name the kubelet's folder plugins_registry, or leave --registry out"
        return _fault("registry", InvalidError(text))
    return PreflightFinding("registry", f"{path}")


def _source(path: Path) -> PreflightFinding:
    """Check a trusted source directory.

    A symlink in its path is a fault: others could change its target.
    """
    real = Path(os.path.realpath(path))
    if real != path:
        return _fault("source", InvalidError(f"source {path} has a symlink in it: name {real}"))
    if not path.is_dir():
        why = "is not a directory" if path.exists() else "is not there"
        return _fault("source", InvalidError(f"source {path} {why}: make it, or leave it out"))
    return PreflightFinding("source", f"{path}", warning=path == path.parent)


def _cgroups(config: DriverConfig) -> PreflightFinding:
    """Check cgroups.

    A machine that cannot limit IO serves all volumes without limits.
    """
    groups = Cgroups(config.cgroups)
    try:
        top = groups.top()
        if config.io_cgroup:
            groups.named(config.io_cgroup)
    except UnsupportedError as reason:
        return PreflightFinding("cgroups", str(reason), warning=bool(config.io_cgroup))
    except TonnageError as failure:
        return _fault("cgroups", failure)
    text = f"IO can be limited in {top.path} (cgroup v{2 if top.v2 else 1})"
    return PreflightFinding(
        "cgroups", f"{text}, of {config.io_cgroup} where no pod is named" if config.io_cgroup else text
    )


def pool(config: PoolConfig, kubelet: Sequence[Path]) -> PreflightFinding:
    """Check one pool. Blocking."""
    what = f"{_POOL}{config.name}"
    try:
        found, remark = preflight_pool.look(kubelet_disk.settle(config, kubelet)), kubelet_disk.remark(config, kubelet)
        return PreflightFinding(what, f"{found}; {remark}" if remark else found, warning=bool(remark))
    except TonnageError as failure:
        return _fault(what, failure)


def _disks(config: DriverConfig) -> Iterator[PreflightFinding]:
    """Check whether the disks hold what their pools may allocate in all."""
    settled = []
    for pool in config.pools:
        with suppress(InvalidError, UnavailableError):
            settled.append(kubelet_disk.settle(pool, config.roots))
    for outlook in pool_config.outlook(settled):
        yield PreflightFinding(f"disk of {outlook.disk}", str(outlook), warning=not outlook.fits)
