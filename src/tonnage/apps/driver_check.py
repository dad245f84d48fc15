"""What a driver's configuration meets on this machine, found out without touching anything."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tonnage.api.quantity import from_bytes
from tonnage.apps.driver_config import DriverConfig
from tonnage.csi import sockets
from tonnage.csi.driver import Driver
from tonnage.csi.openings import Openings
from tonnage.csi.registration import SUFFIX
from tonnage.csi.throttle import Throttle
from tonnage.errors import HostError, Invalid, TonnageError, Unavailable
from tonnage.host import btrfs, loop
from tonnage.host.run import PATH
from tonnage.pools import config as pool_config
from tonnage.pools.config import PoolConfig
from tonnage.pools.directory import MARKER, Marker

_TOOLS = {"image": ("mkfs.ext4", "e2fsprogs"), "btrfs": ("mkfs.btrfs", "btrfs-progs")}
_MARKS = {"image": ("image",), "btrfs": ("btrfs", "btrfs-image")}
_POOL = "pool "
_UNMARKED = frozenset({MARKER, "lost+found"})


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. fault: why the driver cannot start; warning: it can, but somebody should know."""

    what: str
    text: str
    warning: bool = False
    fault: TonnageError | None = None


def check(config: DriverConfig) -> list[Finding]:
    """Look at everything that the configuration names. Blocking; nothing is made, opened for writing, or locked."""
    found = [_driver(config), _endpoint(config.endpoint), _state(config.state)]
    if config.registry is not None:
        found.append(_registry(config.registry, config.driver_name))
    if config.metrics is not None:
        warning = config.metrics.open_to_others
        text = f"{config.metrics}{', open to other machines, without a password' if warning else ''}"
        found.append(Finding("metrics", text, warning=warning))
    found.extend(map(_pool, config.pools))
    found.extend(_disks(config))
    return found


def require(findings: list[Finding]) -> None:
    """Raises the first fault among findings. Pools that cannot be had now are none as long as there is another one."""
    pools = [finding.fault for finding in findings if finding.what.startswith(_POOL)]
    for finding in findings:
        if finding.fault is not None and not (_may_come(finding) and None in pools):
            raise finding.fault


def _may_come(finding: Finding) -> bool:
    """Whether it is a pool whose disk may come, rather than one that is described wrongly."""
    return finding.what.startswith(_POOL) and isinstance(finding.fault, Unavailable | HostError)


def _fault(what: str, failure: TonnageError) -> Finding:
    return Finding(what, str(failure), fault=failure)


def _driver(config: DriverConfig) -> Finding:
    try:
        make(config)
    except TonnageError as failure:
        return _fault("driver", failure)
    key = f"{config.topology_key}={config.node_name}"
    return Finding("driver", f"{config.driver_name} on node {config.node_name} ({key})")


def make(config: DriverConfig) -> Driver:
    """The driver, its pools not yet open. Raises Invalid."""
    pools = {pool.name: pool_config.make(pool) for pool in config.pools}
    throttle = Throttle()
    return Driver(
        config.node_name,
        pools,
        config.state,
        name=config.driver_name,
        topology_key=config.topology_key,
        max_volumes=config.max_volumes,
        roots=config.roots,
        throttle=throttle,
        openings=Openings(pools, opened=lambda pool: throttle.restore([pool])),
    )


def _endpoint(path: Path) -> Finding:
    try:
        mode = os.lstat(path).st_mode
    except OSError as failure:
        if failure.errno == errno.ENOENT:
            return Finding("endpoint", f"{path}")
        return _fault("endpoint", Invalid(f"endpoint {path}: {failure.strerror}"))
    if not stat.S_ISSOCK(mode):
        return _fault("endpoint", Invalid(f"{path} exists and is not a socket: remove it or choose another path"))
    return Finding("endpoint", f"{path} (there is a socket: it is replaced if nobody answers there)")


def _state(path: Path) -> Finding:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return Finding("state", f"{path} (made when it is needed)")
    except OSError as failure:
        return _fault("state", HostError(f"state folder {path}: {failure.strerror}"))
    if not stat.S_ISDIR(mode):
        return _fault("state", Invalid(f"state folder {path} is not a directory"))
    return Finding("state", f"{path}")


def _registry(path: Path, driver: str) -> Finding:
    try:
        sockets.check_length(path / f"{driver}{SUFFIX}")
    except Invalid as failure:
        return _fault("registry", failure)
    if not path.is_dir():
        why = "is not a directory" if path.exists() else "is not there"
        text = f"registry {path} {why}: name the kubelet's folder plugins_registry, or leave --registry out"
        return _fault("registry", Invalid(text))
    return Finding("registry", f"{path}")


def _pool(pool: PoolConfig) -> Finding:
    what = f"{_POOL}{pool.name}"
    try:
        size = from_bytes(pool.size) if pool.size else "what its disk has"
        if pool.where is None:
            pool_config.make(pool)
            return Finding(what, f"{pool.kind}, {size}, kept in the process: its volumes end with the driver")
        state = _directory(pool, pool.where)
        _machine(pool, pool.where)
        pool_config.make(pool)
    except TonnageError as failure:
        return _fault(what, failure)
    return Finding(what, f"{pool.kind} in {pool.where}, {size}, {state}")


def _directory(pool: PoolConfig, where: Path) -> str:
    """What is at a pool's directory, in words. Raises Unavailable."""
    try:
        mode = os.lstat(where).st_mode
        if stat.S_ISLNK(mode):
            raise Unavailable(f"pool {pool.name}: {where} is a symlink: name the directory itself")
        if not stat.S_ISDIR(mode):
            raise Unavailable(f"pool {pool.name}: {where} is not a directory")
        entries = set(os.listdir(where))
    except FileNotFoundError:
        return "new: the directory will be made"
    except OSError as failure:
        raise Unavailable(f"pool {pool.name}: {where}: {failure.strerror}") from failure
    if MARKER not in entries:
        if foreign := sorted(entries - _UNMARKED):
            raise Unavailable(
                f"pool {pool.name}: {where} holds files that are not tonnage's ({foreign[0]!r}): name an empty one"
            )
        return "new: the directory is empty"
    if _marker(pool, where) == "btrfs-image":
        return "a btrfs image made before"  # its volumes can only be seen where it is mounted
    volumes = sum(entry.endswith(".json") and not entry.startswith(".") for entry in entries)
    return f"{volumes} volume{'s' * (volumes != 1)}"


def _marker(pool: PoolConfig, where: Path) -> str:
    """Which kind of pool the directory belongs to, "" where its maker was killed. Raises Unavailable."""
    try:
        text = (where / MARKER).read_bytes()
        kind = msgspec.json.decode(text, type=Marker).kind if text else ""
    except (OSError, msgspec.MsgspecError) as failure:
        raise Unavailable(f"pool {pool.name}: {where / MARKER} cannot be read: {failure}") from failure
    if kind and kind not in _MARKS[pool.kind]:
        raise Unavailable(f"pool {pool.name}: {where} belongs to a pool of kind {kind}, not {pool.kind}")
    return kind


def _machine(pool: PoolConfig, where: Path) -> None:
    """Raises HostError when the machine lacks what the pool needs."""
    if os.geteuid() != 0:
        raise HostError(f"pool {pool.name}: {pool.kind} pools mount file systems, which takes root: run it as root")
    if pool.kind == "btrfs" and is_btrfs(where):
        return
    if not Path(loop.CONTROL).exists():
        raise HostError(f"pool {pool.name}: {pool.kind} pools need loop devices, and {loop.CONTROL} is not there")
    tool, package = _TOOLS[pool.kind]
    if shutil.which(tool, path=PATH) is None:
        raise HostError(f"pool {pool.name}: {tool} is not there (Debian: apt-get install {package})")


def is_btrfs(where: Path) -> bool:
    """Whether a pool's directory is, or would be, on a btrfs."""
    existing = next(path for path in (where, *where.parents) if path.is_dir())
    at = os.open(existing, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return btrfs.fsid(at) is not None
    finally:
        os.close(at)


def _disks(config: DriverConfig) -> Iterator[Finding]:
    """Whether the disks can keep what the pools may promise together."""
    for outlook in pool_config.outlook(config.pools):
        yield Finding(f"disk of {outlook.disk}", str(outlook), warning=not outlook.fits)
