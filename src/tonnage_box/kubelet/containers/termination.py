"""Termination message of a container: a file on a small tmpfs, so that it cannot fill the node's disk.

The tmpfs belongs to one attempt of one container and survives the kubelet. end() saves the message in the attempt's
folder and unmounts the tmpfs. Blocking.
"""

from __future__ import annotations

import os
from contextlib import suppress

from tonnage.host import mount

DEFAULT_PATH = "/dev/termination-log"
FALLBACK = "FallbackToLogsOnError"
"""The terminationMessagePolicy with which the end of the log is the message of a failure that has none."""
SIZE = 1 << 20
"""Bytes that a container can write to the file; beyond them it gets ENOSPC."""
LONGEST = 4096
"""Bytes of a message that are read."""
TOGETHER = 12 << 10
"""Bytes of the messages of all containers of a pod in its status."""
_PLACE, _FILE, _SAVED = "termination", "log", "termination-log"


def path(folder: str) -> str:
    """The file that the container of an attempt's folder sees at its terminationMessagePath."""
    return f"{folder}/{_PLACE}/{_FILE}"


def make(folder: str) -> None:
    """Make the file in a fresh folder. Raises: OSError, HostError."""
    place = f"{folder}/{_PLACE}"
    os.mkdir(place, 0o700)
    options = [f"size={SIZE}", "nr_inodes=2", "mode=700", "nosuid", "nodev", "noexec"]
    mount.mount("tmpfs", place, "tmpfs", options)
    fd = os.open(path(folder), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.fchmod(fd, 0o666)
    os.close(fd)


def write(folder: str, message: str) -> None:
    """Put a message there before the container starts, which replaces or extends it. Raises: OSError."""
    with open(path(folder), "w") as file:
        file.write(message)


def read(folder: str) -> str:
    """The message, also after end(); "" when there is none."""
    return (_read(path(folder)) or _read(f"{folder}/{_SAVED}")).decode(errors="replace")


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read(LONGEST)
    except OSError:
        return b""


def end(folder: str) -> None:
    """Keep the message and unmount. Idempotent. Raises: OSError, HostError, PreconditionError (in use)."""
    place = f"{folder}/{_PLACE}"
    if not mount.is_mount(place):
        return
    if message := _read(path(folder)):
        with open(f"{folder}/{_SAVED}.new", "wb") as file:
            file.write(message)
        os.rename(f"{folder}/{_SAVED}.new", f"{folder}/{_SAVED}")
    mount.umount(place)
    with suppress(OSError):
        os.rmdir(place)
