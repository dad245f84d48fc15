"""Volume ids and names. An id is `<pool>/<volume name>`; a name is valid in a path."""

from __future__ import annotations

import hashlib
import re

from tonnage.errors import InvalidError
from tonnage.pools.base.contract import MAX_NAME, check_name

MAX_POOL = 63
MAX_VOLUME = 64
"""Bytes of a volume's name, so that the id keeps CSI's limit of 128."""
_MAPPED = re.compile(r"n-.*-[0-9a-f]{32}", re.DOTALL)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_name(name: str, *, longest: int = MAX_VOLUME) -> str:
    """The volume name for a CO's name: the same if valid in a path, else `n-<alike>-<hash>`.

    Names that look like the mapped form are mapped too, so two names never collide.
    """
    try:
        if len(name) <= longest and not _MAPPED.fullmatch(name):
            return check_name(name)
    except InvalidError:
        pass
    alike = _UNSAFE.sub("-", name).strip("-.")[:24]
    return f"n-{alike}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def inline_name(handle: str) -> str:
    """The volume name for the handle of an inline volume."""
    return safe_name(handle, longest=MAX_NAME)


def join(pool: str, name: str) -> str:
    """The id of a volume."""
    return f"{pool}/{name}"


def split(volume_id: str) -> tuple[str, str] | None:
    """Pool and name of an id; None without our form, which no volume of ours can have."""
    pool, slash, name = volume_id.partition("/")
    if not slash or not pool:
        return None
    try:
        return pool, check_name(name)
    except InvalidError:
        return None


def lock_key(volume_id: str) -> str:
    """The lock key of a call on this id: the volume's name, which CreateVolume knows as well."""
    parts = split(volume_id)
    return parts[1] if parts else inline_name(volume_id)
