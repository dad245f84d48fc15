"""fsGroup: gives a volume to a pod's group, as the kubelet does (KEP-695, KEP-1682).

The volume belongs to pods, so nothing here follows a symlink: every step goes through the descriptor of its folder.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from tonnage.base.errors import HostError
from tonnage.host import tree
from tonnage.host.descriptor import opened
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.pods import SecurityContext

ON_ROOT_MISMATCH = "OnRootMismatch"
_READ_WRITE, _READ_ONLY, _FOLDER = 0o660, 0o440, 0o2110


def wanted(policy: str, *, fstype: str, access_modes: Sequence[str], read_only: bool) -> bool:
    """Whether the kubelet sets the group, by the driver's fsGroupPolicy."""
    if read_only or policy == "None":
        return False
    if policy == "File":
        return True
    once = {names.READ_WRITE_ONCE, names.READ_WRITE_ONCE_POD}
    return bool(fstype) and bool(access_modes) and set(access_modes) <= once


async def give(path: str, security: SecurityContext, *, read_only: bool = False) -> None:
    """Give a volume to the pod's group, if it has one. Raises: HostError."""
    if security.fs_group is not None:
        policy = security.fs_group_change_policy
        await asyncio.to_thread(apply, path, security.fs_group, policy=policy, read_only=read_only)


def apply(root: str, group: int, *, policy: str | None, read_only: bool = False) -> None:
    """Give all files below root to group, with its permissions. Idempotent. Blocking. Raises: HostError."""
    try:
        if policy == ON_ROOT_MISMATCH and _matches(root, group, read_only=read_only):
            return
        # Bottom up, root last: an interrupted walk is then seen by OnRootMismatch and done again.
        for name, at in tree.below(root):
            _give(name, at, group, read_only=read_only)
        with opened(root, os.O_DIRECTORY | os.O_NOFOLLOW) as fd:
            os.chown(fd, -1, group)
            os.chmod(fd, _mode(os.fstat(fd).st_mode, read_only=read_only))
    except OSError as failure:
        raise HostError(f"cannot give {root} to group {group} (fsGroup): {failure.strerror}") from failure


def _matches(root: str, group: int, *, read_only: bool) -> bool:
    status = os.lstat(root)
    return status.st_gid == group and stat.S_IMODE(status.st_mode) == _mode(status.st_mode, read_only=read_only)


def _mode(mode: int, *, read_only: bool) -> int:
    mask = _READ_ONLY if read_only else _READ_WRITE
    return stat.S_IMODE(mode) | mask | (_FOLDER if stat.S_ISDIR(mode) else 0)


def _give(name: str, at: int, group: int, *, read_only: bool) -> None:
    """One entry; one that vanishes meanwhile is fine."""
    with suppress(FileNotFoundError), opened(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=at) as fd:
        mode = os.fstat(fd).st_mode
        # By way of /proc the very inode is meant that was opened, whatever the name has become.
        path = f"/proc/self/fd/{fd}"
        if stat.S_ISLNK(mode):
            os.chown(name, -1, group, dir_fd=at, follow_symlinks=False)
            return
        os.chown(path, -1, group)
        os.chmod(path, _mode(mode, read_only=read_only))
