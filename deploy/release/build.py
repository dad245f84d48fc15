"""Builds the files of a release out of a tree, into a folder: `python -m deploy.release.build`, in a clone of the tag.

The same tree, packages and tools give the same bytes: times are those of $SOURCE_DATE_EPOCH, entries of archives are
sorted, belong to root, and have modes of their own.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster import programs
from deploy.image import build as images
from deploy.image.debian import Missing
from deploy.image.python import Broken
from deploy.release import provenance, sbom
from deploy.release.sums import digest
from deploy.release.tag import Rejected

from tonnage import __version__
from tonnage.tools.ops.install.manifests import render
from tonnage.tools.ops.install.options import IMAGE, Installation, parse_version

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ("amd64", "arm64")
_CHART = ROOT / "deploy/helm/tonnage"


def build(into: Path, commit: str, time: int, architectures: Sequence[str]) -> None:
    """All files but sums and signature. commit: of the tag; time: of that commit. Blocking, for minutes with images.

    Raises Rejected, debian.Missing, python.Broken.
    """
    distributions(into)
    chart(into, time)
    manifests(into)
    materials = list(_images(into, time, architectures))
    for file in sorted(filter(sbom.is_listed, into.iterdir())):
        sbom.write(file, __version__, time)
    made = provenance.statement(into, __version__, commit, architectures, materials)
    (into / provenance.NAME).write_text(json.dumps(made, indent=2, sort_keys=True) + "\n")


def distributions(into: Path) -> None:
    """The source distributions and wheels of tonnage and tonnage-box. Raises Rejected."""
    for folder in (ROOT, ROOT / "box"):
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(into)]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise Rejected(f"{folder}: hatchling: {ended.stderr.strip()[-600:]}")
    for file in into.iterdir():
        file.chmod(0o644)


def chart(into: Path, time: int) -> Path:
    """The package of the Helm chart, as `helm package` names it."""
    file = into / f"tonnage-{__version__}.tgz"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for path in sorted(path for path in _CHART.rglob("*") if path.is_file()):
            info = tarfile.TarInfo(f"tonnage/{path.relative_to(_CHART)}")
            info.mode, info.mtime, info.size = 0o644, time, path.stat().st_size
            info.uname = info.gname = "root"
            with path.open("rb") as content:
                out.addfile(info, content)
    file.write_bytes(gzip.compress(buffer.getvalue(), mtime=time))
    return file


def manifests(into: Path) -> None:
    """The plain manifests of the default installation, for each release of Kubernetes that is tested."""
    for release in releases():
        text = render(Installation(kubernetes=parse_version(release)))
        (into / f"tonnage-{__version__}-kubernetes-{release}.yaml").write_text(text)


def releases() -> list[str]:
    """The releases of Kubernetes that tests of this tree can run on, as 1.30; the oldest first."""
    found = {programs.version(folder) for folder in programs.MODULES.glob("kubernetes*")}
    minors = sorted({tuple(map(int, text.removeprefix("v").split(".")[:2])) for text in found})
    return [f"{major}.{minor}" for major, minor in minors]


def _images(into: Path, time: int, architectures: Sequence[str]) -> Iterator[provenance.Material]:
    for architecture in architectures:
        file = into / f"tonnage-{__version__}-image-{architecture}.tar"
        made = images.build(file, IMAGE, time=time, architecture=architecture)
        yield from (provenance.Material(found.name, digest(found)) for found in made.materials)


def main() -> int:
    """The command line, for the process that a release starts in a clone."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release.build")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--architecture", action="append", default=[], choices=ARCHITECTURES)
    options = parser.parse_args()
    try:
        build(options.into, options.commit, int(os.environ["SOURCE_DATE_EPOCH"]), options.architecture)
    except (Rejected, Missing, Broken, ValueError) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
