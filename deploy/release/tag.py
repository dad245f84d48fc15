"""The tag that a release is made of: its version is that of every file, and nothing but it is checked out."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_MODULE = "src/tonnage/__init__.py"
_CHART = "deploy/helm/tonnage/Chart.yaml"


class Rejected(Exception):
    """A release that is not made, or files that are not a release; the message says why and what to do."""


@dataclass(frozen=True)
class Tag:
    """A version, its commit, and the commit's time in seconds since 1970."""

    version: str
    commit: str
    time: int

    @property
    def name(self) -> str:
        """As git has it."""
        return f"v{self.version}"


def check(root: Path, version: str) -> Tag:
    """The tag of a version, which is checked out. Blocking. Raises Rejected."""
    if not _VERSION.fullmatch(version):
        raise Rejected(f"version {version!r}: not MAJOR.MINOR.PATCH; write it as 0.2.0")
    name = f"v{version}"
    if changed := git(root, "status", "--porcelain").splitlines():
        raise Rejected(f"{name}: the tree is not clean: {_some(changed)}; commit these files or remove them")
    head = git(root, "rev-parse", "HEAD").strip()
    if not (commit := git(root, "for-each-ref", "--format=%(*objectname)%(objectname)", f"refs/tags/{name}")[:40]):
        raise Rejected(f"{name}: there is no such tag; make it on the release's commit: git tag --annotate {name}")
    if commit != head:
        raise Rejected(
            f"{name}: it exists on commit {commit[:12]}, and {head[:12]} is checked out: a version is released once; "
            f"check {name} out, or take the next version"
        )
    if wrong := [f"{file} has {found}" for file, found in versions(root) if found != version]:
        raise Rejected(f"{name}: {_some(wrong)}; run make version VERSION={version}, commit, and make the tag again")
    if f"\n## {version}\n" not in (root / "CHANGELOG.md").read_text():
        raise Rejected(f"{name}: CHANGELOG.md has no section {version}; write it in a commit before the tag")
    return Tag(version, commit, int(git(root, "log", "-1", "--format=%ct", commit)))


def versions(root: Path) -> Iterator[tuple[str, str]]:
    """Each place that has the version, and what it has."""
    core, box = (
        tomllib.loads((root / file).read_text())["project"] for file in ("pyproject.toml", "box/pyproject.toml")
    )
    yield "pyproject.toml", core["version"]
    yield "pyproject.toml (extra box)", core["optional-dependencies"]["box"][0].partition("==")[2]
    yield "box/pyproject.toml", box["version"]
    yield "box/pyproject.toml (dependencies)", box["dependencies"][0].partition("==")[2]
    yield _MODULE, json.loads((root / _MODULE).read_text().partition("__version__ = ")[2].splitlines()[0])
    chart = yaml.safe_load((root / _CHART).read_text())
    yield f"{_CHART} (version)", chart["version"]
    yield f"{_CHART} (appVersion)", str(chart["appVersion"])


def set_version(root: Path, version: str) -> None:
    """Write a version into each place. Raises Rejected. Idempotent."""
    if not _VERSION.fullmatch(version):
        raise Rejected(f"version {version!r}: not MAJOR.MINOR.PATCH; write it as 0.2.0")
    places = {
        "pyproject.toml": r'(?m)^(version = "|box = \["tonnage-box==)[\d.]+',
        "box/pyproject.toml": r'(?m)^(version = "|dependencies = \["tonnage==)[\d.]+',
        _MODULE: r'(?m)^(__version__ = ")[\d.]+',
        _CHART: r"(?m)^((?:version|appVersion): )[\d.]+",
    }
    for file, pattern in places.items():
        path = root / file
        path.write_text(re.sub(pattern, rf"\g<1>{version}", path.read_text()))


def git(root: Path, *words: str) -> str:
    """What git prints. Raises Rejected."""
    ended = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise Rejected(
            f"{root}: git {words[0]}: {ended.stderr.strip()}; a release is made in a clone of the repository"
        )
    return ended.stdout


def _some(found: list[str]) -> str:
    return ", ".join(line.strip() for line in found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
