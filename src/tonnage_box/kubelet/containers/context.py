"""Context of a container: what a further process in it needs, stored when the container is started.

A later kubelet finds it there. It may contain secrets, as the environment does: the folder is root's alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from tonnage.host.encoding import encode
from tonnage_box.kubelet.containers.rootfs import User

_FILE = "context.json"


class ContainerContext(msgspec.Struct, frozen=True):
    """How processes of a container run. capabilities: a mask. unconfined: which seccomp filter holds."""

    environment: dict[str, bytes]
    working_dir: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int
    unconfined: bool = False


def of(
    who: User, variables: Mapping[str, str], *, working_dir: str, capabilities: int, unconfined: bool
) -> ContainerContext:
    """The context of a container that runs as `who`. Raises: InvalidError (a variable that cannot be encoded)."""
    environment = {key: encode(value, f"value of variable {key}") for key, value in variables.items()}
    return ContainerContext(environment, working_dir, who.uid, who.gid, who.groups, capabilities, unconfined)


def save(folder: str, context: ContainerContext) -> None:
    """Store it in the container's folder. Raises: OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(f"{folder}/{_FILE}", flags, 0o600), "wb") as file:
        file.write(msgspec.json.encode(context))


def load(folder: str) -> ContainerContext | None:
    """Read it; None if the container has ended, or was started by an older version."""
    try:
        with open(f"{folder}/{_FILE}", "rb") as file:
            return msgspec.json.decode(file.read(), type=ContainerContext)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def remove(folder: str) -> None:
    """Remove it. Idempotent."""
    with suppress(FileNotFoundError):
        os.unlink(f"{folder}/{_FILE}")
