"""What a request asks for: volume capabilities, class parameters and inline attributes.

Capabilities say how a local volume can be used, with which mount options. Parameters choose the pool and its
parameters, and give the owner record. Under the name of another driver, objects that were written for that driver work
unchanged. Each of its keys is listed with its values; one without a meaning here is checked and then ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tonnage.base.errors import InvalidError
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import OWNER_DRIVER, OWNER_KEYS, Driver
from tonnage.kubernetes.api import names
from tonnage.storage.content import spec
from tonnage.storage.content.spec import ContentSpec
from tonnage.storage.pools import kinds
from tonnage.storage.pools.base.contract import PoolVolume
from tonnage.storage.pools.base.parameters import (
    KIND,
    POOL,
    SOURCE,
    KeyReader,
    check_modifiable,
    check_rejected,
    check_shared,
    io_limits_of,
    keys_of,
    source_of,
)
from tonnage.storage.pools.core.pool import Pool

_CHOOSING = keys_of(KeyReader.DRIVER)
_NOT_OF_POOLS = _CHOOSING | OWNER_KEYS | {names.PARAM_UNUSED, names.PARAM_INLINE, names.PARAM_CONTENT}
"""Keys that are not passed to a pool."""
_TRUE = frozenset({"true", "True", "TRUE", "t", "T", "1"})
_BOOLS = _TRUE | {"false", "False", "FALSE", "f", "F", "0"}
_FOREIGN: Mapping[str, Mapping[str, frozenset[str]]] = {
    names.PMEM_CSI: {
        "eraseafter": _BOOLS,
        "kataContainers": _BOOLS,
        "usage": frozenset({"AppDirect", "FileIO"}),
        "nsmode": frozenset({"fsdax", "sector"}),
        "persistencyModel": frozenset({"normal", "none", "cache", ""}),
    }
}
"""The parameters of other drivers, by driver name. All of PMEM-CSI's but eraseafter choose between ways to access
memory, of which there is one here."""
_SWITCHES = {"eraseafter": "erase"}
"""Foreign switches -> the parameter of a pool that means the same, with "zero" for true and "none" for false."""
Mode = csi_pb2.VolumeCapability.AccessMode
SINGLE_NODE = frozenset(
    {
        Mode.SINGLE_NODE_WRITER,
        Mode.SINGLE_NODE_READER_ONLY,
        Mode.SINGLE_NODE_SINGLE_WRITER,
        Mode.SINGLE_NODE_MULTI_WRITER,
    }
)
MOUNT_OPTIONS = frozenset(
    {"ro", "rw", "noexec", "exec", "nosuid", "suid", "nodev"}
    | {"noatime", "atime", "relatime", "norelatime", "strictatime", "nostrictatime", "nodiratime", "diratime"}
    | {"lazytime", "nolazytime", "sync", "async", "dirsync", "discard", "nodiscard", "dax"}
)
"""Mount options that affect only the pod's own file system."""
_IN_KUBERNETES = {
    Mode.MULTI_NODE_READER_ONLY: "MULTI_NODE_READER_ONLY (ReadOnlyMany)",
    Mode.MULTI_NODE_MULTI_WRITER: "MULTI_NODE_MULTI_WRITER (ReadWriteMany)",
}
"""Access modes by their names in Kubernetes."""
# The kubelet adds the pod's SELinux context when CSIDriver.spec.seLinuxMount is set.
_CONTEXT = re.compile(r'context=(?:"[\w:.,-]+"|[\w:.-]+)')


@dataclass(frozen=True)
class Selection:
    """Parsed parameters. fstype: "" when not given. content: what to fill the volume with, None for nothing."""

    pool: Pool
    fstype: str
    parameters: Mapping[str, str]
    owner: Mapping[str, str]
    content: ContentSpec | None = None


def select(driver: Driver, parameters: Mapping[str, str]) -> Selection:
    """Parse parameters. Raises: InvalidError for an unknown key or pool, naming it and the known ones."""
    pool = _pool(driver, parameters.get(POOL, ""), parameters.get(KIND, ""))
    ours = {
        key: value
        for key, value in parameters.items()
        if not (key in _NOT_OF_POOLS or key.startswith(names.CSI_PREFIX) or is_fstype(key))
    }
    foreign = _FOREIGN.get(driver.name, {})
    ours = _translate(ours, foreign, pool.features.parameters)
    content = _content(driver, pool, parameters.get(names.PARAM_CONTENT, ""), ours)
    check_rejected(pool, ours)
    if unknown := sorted(set(ours) - pool.features.parameters):
        accepted = sorted({*_CHOOSING, *pool.features.parameters, *foreign})
        raise InvalidError(f"unknown parameter {unknown[0][:60]!r}: pool {pool.name} takes {', '.join(accepted)}")
    check_shared(ours)
    _check_source(driver, ours)
    _check_limits(driver, ours)
    owner = {key: value for key, value in parameters.items() if key in OWNER_KEYS}
    pool.trash.check_undelete(owner, ours)
    owner[OWNER_DRIVER] = driver.name
    return Selection(pool, _fstype(parameters), ours, owner, content)


def _content(driver: Driver, pool: Pool, asked: str, ours: dict[str, str]) -> ContentSpec | None:
    """What to fill the volume with: as asked, else as the class's `source` says, which is taken from `ours`.

    Raises: InvalidError for what this node does not allow, or the pool does not offer.
    """
    content = spec.decode(asked) if asked else spec.of_source(ours.get(SOURCE, ""))
    if content is None:
        return None
    ours.pop(SOURCE, None)
    if SOURCE not in pool.features.parameters:
        why = pool.features.rejected.get(SOURCE, "its volumes begin empty")
        raise InvalidError(f"{content}: pool {pool.name!r} ({pool.kind}) fills no volumes: {why}")
    driver.access.check(content)
    return content


def _translate(
    parameters: Mapping[str, str], foreign: Mapping[str, frozenset[str]], known: frozenset[str]
) -> dict[str, str]:
    """Parameters without the foreign keys, or with the equivalent ones where the pool knows them.

    Keys that the pool knows stay unchanged. Raises: InvalidError for a value that is not listed.
    """
    result = {}
    for key, value in parameters.items():
        if key in known or key not in foreign:
            result[key] = value
            continue
        if value not in foreign[key]:
            raise InvalidError(f"{key}={value[:40]!r}: want one of {', '.join(sorted(foreign[key]))}")
        if (ours := _SWITCHES.get(key)) is not None and ours in known:
            result.setdefault(ours, "zero" if value in _TRUE else "none")
    return result


def _check_limits(driver: Driver, parameters: Mapping[str, str]) -> None:
    if io_limits_of(parameters):
        driver.throttle.check()


def _check_source(driver: Driver, parameters: Mapping[str, str]) -> None:
    path = source_of(parameters)
    if path is None or any(path.is_relative_to(allowed) for allowed in driver.sources):
        return
    there_is = ", ".join(map(str, driver.sources)) or "there is none, see --source"
    raise InvalidError(
        f"parameter source: {path} is not in a folder whose content volumes may get on this node ({there_is})"
    )


def changes(driver: Driver, pool: Pool, mutable: Mapping[str, str]) -> dict[str, str]:
    """Mutable parameters (of a VolumeAttributesClass) without the orchestrator's own.

    Raises: InvalidError, UnsupportedError.
    """
    ours = {key: value for key, value in mutable.items() if not key.startswith(names.CSI_PREFIX)}
    check_modifiable(pool, ours)
    _check_limits(driver, ours)
    return ours


def is_fstype(key: str) -> bool:
    """Whether a parameter is the file system; "fstype", in any case, is the old key for it."""
    return key == names.CSI_FSTYPE or key.lower() == "fstype"


def _fstype(parameters: Mapping[str, str]) -> str:
    named = sorted({value for key, value in parameters.items() if is_fstype(key) and value})
    if len(named) > 1:
        raise InvalidError(f"one volume has one file system, the parameters name {' and '.join(named)}")
    return named[0] if named else ""


def _pool(driver: Driver, name: str, kind: str) -> Pool:
    pool = driver.pool(name)
    kind = kinds.RENAMED.get(kind, kind)  # classes outlive the names of kinds
    if not kind or pool.kind == kind:
        return pool
    if name:
        raise InvalidError(f"pool {name!r} is of kind {pool.kind}, requested {kind[:40]!r}")
    for other in driver.pools.values():
        if other.kind == kind:
            return other
    known = ", ".join(sorted({other.kind for other in driver.pools.values()}))
    raise InvalidError(f"there is no pool of kind {kind[:40]!r} (there is {known})")


@dataclass(frozen=True)
class Use:
    """Checked capabilities, all of one kind. flags: mount options without duplicates."""

    block: bool
    fstype: str
    flags: Sequence[str]
    readonly: bool
    single_writer: bool


def check_capabilities(capabilities: Sequence[csi_pb2.VolumeCapability]) -> Use:
    """Check capabilities that one volume must have together. Raises: InvalidError naming the unsupported one."""
    if not capabilities:
        raise InvalidError("volume_capabilities is missing")
    for capability in capabilities:
        _check_mode(capability)
    blocks = {_is_block(capability) for capability in capabilities}
    if len(blocks) > 1:
        raise InvalidError("a volume is either raw block or a file system, both are asked")
    block = blocks.pop()
    modes = {capability.access_mode.mode for capability in capabilities}
    return Use(
        block=block,
        fstype="" if block else _fstype_of(capabilities),
        flags=() if block else mount_options(flag for c in capabilities for flag in c.mount.mount_flags),
        readonly=modes == {Mode.SINGLE_NODE_READER_ONLY},
        single_writer=Mode.SINGLE_NODE_SINGLE_WRITER in modes,
    )


def check_capability(request: csi_pb2.NodeStageVolumeRequest | csi_pb2.NodePublishVolumeRequest) -> Use:
    """Check the capability of a node call. Raises: InvalidError."""
    if not request.HasField("volume_capability"):
        raise InvalidError("volume_capability is missing")
    return check_capabilities([request.volume_capability])


def _check_mode(capability: csi_pb2.VolumeCapability) -> None:
    mode = capability.access_mode.mode
    if mode == Mode.UNKNOWN:
        raise InvalidError("volume_capability.access_mode is missing")
    if mode not in SINGLE_NODE:
        known = mode in Mode.Mode.values()
        label = Mode.Mode.Name(mode) if known else str(int(mode))
        raise InvalidError(
            f"access mode {_IN_KUBERNETES.get(mode, label)} is not possible: one node at a time uses a volume;"
            " use ReadWriteOnce or ReadWriteOncePod"
        )
    if capability.WhichOneof("access_type") is None:
        raise InvalidError("volume_capability.access_type is missing: want block or mount")


def _is_block(capability: csi_pb2.VolumeCapability) -> bool:
    return capability.WhichOneof("access_type") == "block"


def _fstype_of(capabilities: Sequence[csi_pb2.VolumeCapability]) -> str:
    if any(capability.mount.volume_mount_group for capability in capabilities):
        raise InvalidError("volume_mount_group is not offered (no VOLUME_MOUNT_GROUP): let the kubelet apply fsGroup")
    asked = {capability.mount.fs_type for capability in capabilities} - {""}
    if len(asked) > 1:
        raise InvalidError(f"one volume has one file system, requested {', '.join(sorted(asked))}")
    return asked.pop() if asked else ""


def mount_options(flags: Iterable[str]) -> tuple[str, ...]:
    """Allowed mount options without duplicates. Raises: InvalidError naming the first other one."""
    result: dict[str, None] = {}
    for flag in flags:
        # One flag may hold several options, but the commas of a quoted SELinux context do not separate.
        for option in (flag,) if _CONTEXT.fullmatch(flag) else flag.split(","):
            if option not in MOUNT_OPTIONS and not _CONTEXT.fullmatch(option):
                allowed = ", ".join(sorted(MOUNT_OPTIONS))
                raise InvalidError(f"mount option {option[:40]!r} is not allowed: allowed are {allowed}")
            result[option] = None
    return tuple(result)


def choose_fstype(pool: Pool, *asked: str, block: bool) -> str:
    """The file system for a new volume: the first requested that is not empty; the pool must support it.

    "" for block and for the pool's default. Raises: InvalidError naming the supported ones.
    """
    if block:
        if not pool.features.blocks:
            raise InvalidError(f"pool {pool.name} ({pool.kind}) has no raw block volumes: ask for a file system")
        return ""
    wanted = sorted({fstype for fstype in asked if fstype})
    if len(wanted) > 1:
        raise InvalidError(f"one volume has one file system, requested {' and '.join(wanted)}")
    if wanted and wanted[0] not in pool.features.fstypes:
        offered = ", ".join(pool.features.fstypes)
        raise InvalidError(f"file system {wanted[0][:40]!r} is not offered by pool {pool.name}: it has {offered}")
    return wanted[0] if wanted else ""


def check_fits(volume: PoolVolume, use: Use) -> None:
    """Check that a volume has a capability. Raises: InvalidError."""
    if volume.block != use.block:
        is_, asked = ("raw block", "mount") if volume.block else ("a file system", "block")
        raise InvalidError(f"volume {volume.name} is {is_}, requested {asked}")
    if use.fstype and volume.fstype and use.fstype != volume.fstype:
        raise InvalidError(f"volume {volume.name} has file system {volume.fstype}, requested {use.fstype[:40]!r}")
