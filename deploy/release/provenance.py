"""The statement of where a release's files come from: in-toto Statement v1 with the predicate SLSA Provenance v1.

It has no times and no name of a machine, so that who builds the same tag gets the same bytes.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from deploy.release.sums import digests

NAME = "provenance.intoto.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
_PAGE = "https://tonnage.dev/docs/release"


@dataclass(frozen=True)
class Material:
    """A file that was built in: its name, and its SHA-256."""

    name: str
    sha256: str


def statement(
    folder: Path, version: str, commit: str, architectures: Sequence[str], materials: Iterable[Material]
) -> dict[str, Any]:
    """The statement about all files of a folder."""
    tag = {"uri": f"git+https://tonnage.dev/tonnage@refs/tags/v{version}", "digest": {"gitCommit": commit}}
    tools = {"python": sys.version.split()[0], "hatchling": version_of("hatchling"), "zlib": zlib.ZLIB_RUNTIME_VERSION}
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in digests(folder).items()],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{_PAGE}#build-type",
                "externalParameters": {"version": version, "architectures": list(architectures)},
                "internalParameters": tools,
                "resolvedDependencies": [
                    tag,
                    *({"name": one.name, "digest": {"sha256": one.sha256}} for one in materials),
                ],
            },
            "runDetails": {"builder": {"id": f"{_PAGE}#builder"}},
        },
    }
