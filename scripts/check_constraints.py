"""Check constraints/: every Python that pyproject.toml admits has these versions, as wheels, and none is missing.

    python -m scripts.check_constraints

uv resolves each layer for each Python and machine with nothing but the versions of its file and of run.txt. The extra
`cinder` has an environment of its own: it is resolved from its own file, also from sources. A result is remembered in
the user's cache until a file changes. Without a network nothing is checked, and one sentence says so.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11.0", "3.11.2", "3.12.0", "3.13.0", "3.14.0")
"""The oldest of each release, and Debian 12's."""
MACHINES = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
BASE = "run"
"""The layer on which each of the others is installed."""
APART = "cinder"
"""Installed for itself: its libraries are of another time, and some are sources only."""
_NO_NETWORK = re.compile(r"error sending request|dns error|client error \(Connect\)")


class Unreachable(Exception):
    """No package index answers."""


def layers(root: Path) -> list[str]:
    """All layers that are checked, `run` first."""
    found = {path.stem for path in (root / "constraints").glob("*.txt")} - {APART}
    return sorted(found, key=lambda layer: (layer != BASE, layer))


def pins(root: Path, layer: str) -> dict[str, str]:
    """Package -> version of a layer's file. Raises ValueError for a line that is no exact version."""
    found = {}
    for line in (root / "constraints" / f"{layer}.txt").read_text().splitlines():
        name, is_exact, version = line.split("#")[0].strip().partition("==")
        if is_exact:
            found[_plain(name)] = version
        elif name:
            raise ValueError(f"constraints/{layer}.txt: {line}: not an exact version; write {name}==VERSION")
    return found


def faults(root: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """What is wrong, a sentence each. options: of uv, more. Blocking, for a minute. Raises Unreachable."""
    pinned = {layer: pins(root, layer) for layer in layers(root)}
    yield from _contradictions(pinned)
    if (root / "constraints" / f"{APART}.txt").exists():
        pinned[APART] = pins(root, APART)
    for layer, own in pinned.items():
        used: set[str] = set()
        for python in PYTHONS:
            for machine in MACHINES:
                resolved, complaint = _resolve(root, layer, python, machine, options)
                used |= resolved.keys()
                if complaint:
                    yield f"constraints/{layer}.txt: Python {python} on {machine} cannot have it: {complaint}"
                yield from (
                    f"constraints/{layer}.txt: Python {python} wants {name}: add {name}=={version}"
                    for name, version in resolved.items()
                    if name not in own and (layer == APART or name not in pinned[BASE])
                )
        if used:
            yield from (f"constraints/{layer}.txt: nothing needs {name}: remove it" for name in own if name not in used)


def _contradictions(pinned: dict[str, dict[str, str]]) -> Iterator[str]:
    """Layers are installed into one environment."""
    versions: dict[str, tuple[str, str]] = {}
    for layer, own in pinned.items():
        for name, version in own.items():
            first, other = versions.setdefault(name, (layer, version))
            if other != version:
                yield f"constraints/{layer}.txt: {name}=={version}, but {other} in {first}.txt; write the same in both"
            elif layer != BASE and name in pinned[BASE]:
                yield f"constraints/{layer}.txt: {name} is in run.txt already: remove it"


def _resolve(
    root: Path, layer: str, python: str, machine: str, options: Sequence[str]
) -> tuple[dict[str, str], str]:  # fmt: skip
    """Package -> version of what a layer needs; or why there is no such set."""
    groups = {BASE, layer} - ({BASE} if layer == APART else set())
    apart = [f"{name}=={version}" for name, version in pins(root, layer).items()]
    wanted = apart if layer == APART else _wanted(root, groups)
    allowed = [f"--constraints={root}/constraints/{group}.txt" for group in groups]
    target = [f"--python-version={python}", f"--python-platform={machine}"]
    target += [] if layer == APART else ["--only-binary=:all:"]
    plain = ["--quiet", "--no-config", "--no-header", "--no-annotate", f"--python={sys.executable}"]
    command = [_uv(), "pip", "compile", *plain, *target, *allowed]
    for more in (["--offline"], []):  # an exact version never changes: what the cache has is not asked for again
        ended = subprocess.run(
            [*command, *more, *options, "-"],
            input="\n".join(wanted), capture_output=True, text=True, check=False, cwd=root / "constraints",
        )  # fmt: skip
        if not ended.returncode:
            break
    if ended.returncode and _NO_NETWORK.search(ended.stderr):
        raise Unreachable(" ".join(ended.stderr.split())[-200:])
    if ended.returncode:
        return {}, " ".join(ended.stderr.split())
    return {_plain(name): version for name, version in (line.split("==") for line in ended.stdout.split())}, ""


def _wanted(root: Path, groups: Iterable[str]) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    return [*project["project"]["dependencies"], *(line for g in groups for line in project["dependency-groups"][g])]


def _uv() -> str:
    return str(Path(sysconfig.get_path("scripts")) / "uv")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def mark(root: Path) -> Path:
    """The file that says that these very files were found good."""
    files = [root / "pyproject.toml", Path(__file__), *sorted((root / "constraints").glob("*.txt"))]
    key = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tonnage" / "constraints" / key


def remember(root: Path) -> None:
    """Note that these very files were found good."""
    good = mark(root)
    good.parent.mkdir(parents=True, exist_ok=True)
    good.touch()


def main(root: Path = ROOT) -> int:
    """Check, unless these files were found good before; 0 where nothing is wrong or no index can be reached."""
    if mark(root).exists():
        return 0
    try:
        wrong = list(faults(root))
    except Unreachable as failure:
        print(f"constraints/: not checked, as no package index can be reached: {failure}")
        return 0
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if not wrong:
        remember(root)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
