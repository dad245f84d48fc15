"""Options of inline drivers: `--inline KIND[,key=value...]`. Used by the node process, the box and the manifests.

`name` (of the CSI driver) and `memory` (bytes of its files) are options of every kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.memory import MEMORY
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

NAME, MEMORY_OPTION = "name", "memory"
_LEAST = 1 << 20


@dataclass(frozen=True)
class InlineConfig:
    """One `--inline`. name: of the CSI driver. memory: bytes of its tmpfs. options: of the kind, as written."""

    kind: str
    name: str
    memory: int = MEMORY
    options: Mapping[str, str] = field(default_factory=dict)


def parse_inline(text: str) -> InlineConfig:
    """Parse `KIND[,key=value...]`; whether the kind exists is not checked. Raises: InvalidError."""
    kind, *parts = text.split(",")
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key or key in options:
            raise InvalidError(f"--inline {text[:80]!r}: want KIND[,key=value...], each key once")
        options[key] = value
    name = names.check_driver_name(options.pop(NAME, f"{kind}.tonnage.dev"))
    memory = to_bytes(options.pop(MEMORY_OPTION)) if MEMORY_OPTION in options else MEMORY
    if memory < _LEAST:
        raise InvalidError(f"--inline {text[:80]!r}: memory: want at least 1Mi")
    return InlineConfig(kind, name, memory, options)


def parse_inlines(texts: Sequence[str]) -> tuple[InlineConfig, ...]:
    """Parse all of a node. Raises: InvalidError, also for two of one name."""
    found = tuple(map(parse_inline, texts))
    taken = [one.name for one in found]
    if doubles := sorted({name for name in taken if taken.count(name) > 1}):
        raise InvalidError(f"--inline: two drivers are named {doubles[0]}: give each a name=")
    return found
