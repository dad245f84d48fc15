"""Parse pools from their one-line description: `KIND[:PLACE][,word=value...]`, and make them.

For example `image:/var/lib/tonnage,size=100Gi`. Each kind has options of its own.
"""

from __future__ import annotations

from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import InvalidError
from tonnage.storage.pools import kinds
from tonnage.storage.pools.base.contract import check_name
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.kind import PoolConfig, PoolKind

LEAST = 1024**2
"""Minimum bytes of a pool: those of the smallest volume with a file system."""


def parse(text: str) -> PoolConfig:
    """Parse a description. Unknown kinds and options are rejected by name.

    Old names of kinds (kinds.RENAMED) are accepted; the name of a pool without name= stays, since ids of volumes begin
    with it. Raises: InvalidError.
    """
    head, *pairs = text.split(",")
    word, _, place = head.partition(":")
    try:
        kind = kinds.get(word)
        given = _pairs(kind, pairs)
        name = check_name(given.pop("name", word))
        values: dict[str, Any] = {**kind.read_place(place), "name": name, "written": word}
    except InvalidError as reason:
        raise InvalidError(f"pool {text[:80]!r}: {reason}") from None
    for key, value in given.items():
        values[kind.options[key].field] = kind.options[key].read(key, value)
    config: PoolConfig = kind.config(kind, **values)
    config.check(given)
    return config


def _pairs(kind: PoolKind[Any], pairs: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in kind.words:
            raise InvalidError(f"{kind} has no option {key[:40]!r}, it has {', '.join(kind.words)}")
        if not equals or not value or key in options:
            raise InvalidError(f"want {key}=VALUE once")
        options[key] = value
    return options


def make(config: PoolConfig, *, clock: Clock | None = None, disks: Disks | None = None) -> Pool:
    """Create the pool that a configuration describes, not open yet.

    disks: those of all pools that may share one with it, by default it shares none. Raises: InvalidError.
    """
    pool: Pool = config.kind.make(config, config.name or config.kind.name, clock, disks)
    pool.backend.inline = config.inline
    return pool
