"""What is wrong with the folder of a release: signature, sums, provenance, and lists that lack a package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from deploy.release import provenance, sbom, signature, sums
from deploy.release.tag import Rejected


def faults(folder: Path, signers: Path) -> Iterator[str]:
    """A sentence for each fault. signers: who may sign. Blocking. Raises Rejected for files that are not signed."""
    if not (folder / sums.SUMS).is_file():
        raise Rejected(f"{folder}: no {sums.SUMS}: not a release; download all of its files into one folder")
    signature.check(folder / sums.SUMS, signers)
    found = list(sums.faults(folder))
    yield from found
    if not found:
        yield from _unlisted(folder)
        yield from _unexplained(folder)


def _unlisted(folder: Path) -> Iterator[str]:
    """Packages that a wheel or an image has and its list has not."""
    for file in sorted(filter(sbom.is_listed, folder.iterdir())):
        spdx = file.with_name(file.name + sbom.SUFFIX)
        if not spdx.is_file():
            yield f"{file.name}: no {spdx.name}; make the release again"
        elif missing := sorted(sbom.names(file) - sbom.listed(spdx)):
            yield f"{spdx.name}: lacks {', '.join(missing)}, which {file.name} has; make the release again"


def _unexplained(folder: Path) -> Iterator[str]:
    """Files of which the provenance says nothing, or something else."""
    made = json.loads((folder / provenance.NAME).read_text())
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in made["subject"]}
    for name, value in sums.digests(folder).items():
        if name != provenance.NAME and subjects.get(name) != value:
            yield f"{provenance.NAME}: {name} is not among its subjects; make the release again"
