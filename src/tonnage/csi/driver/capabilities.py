"""Volume capabilities: how a local volume can be used, and the allowed mount options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tonnage.csi._proto import csi_pb2
from tonnage.errors import InvalidError
from tonnage.pools.base.contract import PoolVolume
from tonnage.pools.core.pool import Pool

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
class Use:
    """Checked capabilities, all of one kind. flags: mount options without duplicates."""

    block: bool
    fstype: str
    flags: Sequence[str]
    readonly: bool
    single_writer: bool


def check(capabilities: Sequence[csi_pb2.VolumeCapability]) -> Use:
    """Check capabilities that one volume must have together. Raises InvalidError naming the unsupported one."""
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
        fstype="" if block else _fstype(capabilities),
        flags=() if block else mount_options(flag for c in capabilities for flag in c.mount.mount_flags),
        readonly=modes == {Mode.SINGLE_NODE_READER_ONLY},
        single_writer=Mode.SINGLE_NODE_SINGLE_WRITER in modes,
    )


def check_one(request: csi_pb2.NodeStageVolumeRequest | csi_pb2.NodePublishVolumeRequest) -> Use:
    """Check the capability of a node call. Raises InvalidError."""
    if not request.HasField("volume_capability"):
        raise InvalidError("volume_capability is missing")
    return check([request.volume_capability])


def _check_mode(capability: csi_pb2.VolumeCapability) -> None:
    mode = capability.access_mode.mode
    if mode == Mode.UNKNOWN:
        raise InvalidError("volume_capability.access_mode is missing")
    if mode not in SINGLE_NODE:
        known = mode in Mode.Mode.values()
        label = Mode.Mode.Name(mode) if known else str(int(mode))
        raise InvalidError(
            f"access mode {_IN_KUBERNETES.get(mode, label)} is not possible: local volumes live on one node;"
            " use ReadWriteOnce or ReadWriteOncePod"
        )
    if capability.WhichOneof("access_type") is None:
        raise InvalidError("volume_capability.access_type is missing: want block or mount")


def _is_block(capability: csi_pb2.VolumeCapability) -> bool:
    return capability.WhichOneof("access_type") == "block"


def _fstype(capabilities: Sequence[csi_pb2.VolumeCapability]) -> str:
    if any(capability.mount.volume_mount_group for capability in capabilities):
        raise InvalidError("volume_mount_group is not offered (no VOLUME_MOUNT_GROUP): let the kubelet apply fsGroup")
    asked = {capability.mount.fs_type for capability in capabilities} - {""}
    if len(asked) > 1:
        raise InvalidError(f"one volume has one file system, requested {', '.join(sorted(asked))}")
    return asked.pop() if asked else ""


def mount_options(flags: Iterable[str]) -> tuple[str, ...]:
    """Allowed mount options without duplicates. Raises InvalidError naming the first other one."""
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

    "" for block and for the pool's default. Raises InvalidError naming the supported ones.
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
    """Check that a volume has a capability. Raises InvalidError."""
    if volume.block != use.block:
        is_, asked = ("raw block", "mount") if volume.block else ("a file system", "block")
        raise InvalidError(f"volume {volume.name} is {is_}, requested {asked}")
    if use.fstype and volume.fstype and use.fstype != volume.fstype:
        raise InvalidError(f"volume {volume.name} has file system {volume.fstype}, requested {use.fstype[:40]!r}")
