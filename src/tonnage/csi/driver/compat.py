"""Compatibility modes: class parameters and inline attributes of other drivers, under those drivers' names.

Objects written for such a driver work unchanged. Each key is listed with its values. A key without a meaning here is
checked and then ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tonnage.errors import Invalid

_BOOLS = frozenset({"true", "false", "True", "False", "TRUE", "FALSE", "t", "f", "T", "F", "1", "0"})
_TRUE = frozenset({"true", "True", "TRUE", "t", "T", "1"})


@dataclass(frozen=True)
class CompatibilityMode:
    """The parameters of another driver that ours accepts.

    values: the allowed values of each foreign key. renamed: foreign switch -> equivalent parameter of a pool, passed on
    as "zero" or "none" when the pool has it.
    """

    values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    def translate(self, parameters: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
        """Parameters without the foreign keys, or with the equivalent ones where a pool that knows `known` has them.

        Keys that the pool knows stay unchanged. Raises Invalid for a value that is not listed.
        """
        result = {}
        for key, value in parameters.items():
            if key in known or key not in self.values:
                result[key] = value
                continue
            if value not in self.values[key]:
                raise Invalid(f"{key}={value[:40]!r}: want one of {', '.join(sorted(self.values[key]))}")
            if (ours := self.renamed.get(key)) is not None and ours in known:
                result.setdefault(ours, "zero" if value in _TRUE else "none")
        return result


PMEM_CSI = CompatibilityMode(
    values={
        "eraseafter": _BOOLS,
        "kataContainers": _BOOLS,
        "usage": frozenset({"AppDirect", "FileIO"}),
        "nsmode": frozenset({"fsdax", "sector"}),
        "persistencyModel": frozenset({"normal", "none", "cache", ""}),
    },
    renamed={"eraseafter": "erase"},
)
"""PMEM-CSI's parameters: pools that erase support eraseafter; the others choose between ways to access memory, of which
there is one here, and are ignored."""

DIALECTS: Mapping[str, CompatibilityMode] = {"pmem-csi.intel.com": PMEM_CSI}
