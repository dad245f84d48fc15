"""Our wheel and the wheels of its dependencies, in the versions of constraints/run.txt, for the image's own Python."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

from deploy.image.archive import Entry, Tree
from deploy.image.debian import Missing

SOURCE = Path(__file__).resolve().parents[2]
_VERSIONS = "constraints/run.txt"
_PLATFORMS = {
    "amd64": ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64"),
    "arm64": ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64", "manylinux_2_34_aarch64"),
}
_DEPENDENCY_JUNK = re.compile(r"(^|/)(tests?|__pycache__)/|\.(pyi|pyx|pxd|c|h|hash)$|/INSTALLER$|^google/_upb/.*\.map$")


def dependencies(python: str, debian: str, cache: Path) -> list[Path]:
    """The wheels of what tonnage needs, sorted. python: as 3.11; debian: the architecture. Raises Missing."""
    locked = (SOURCE / _VERSIONS).read_text()
    wanted = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["dependencies"]
    key = hashlib.sha256(repr((locked, wanted, python, debian)).encode()).hexdigest()[:16]
    folder = cache / "wheels" / key
    if not folder.exists():
        platforms = [f"--platform={platform}" for platform in _PLATFORMS[debian]]
        target = [f"--python-version={python}", "--implementation=cp", *platforms, "--only-binary=:all:"]
        _into(folder, "download", *target, f"--constraint={SOURCE}/{_VERSIONS}", *wanted)
    found = sorted(folder.glob("*.whl"))
    pinned = dict(line.split("==") for line in locked.split())
    pinned = {_plain(name): version for name, version in pinned.items()}
    for wheel in found:
        name, version = wheel.name.split("-")[:2]
        if pinned.get(_plain(name)) != version:
            raise ValueError(f"{wheel.name} is not in {_VERSIONS}: add {name}=={version}")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def ours(time: int) -> Path:
    """A wheel of this source tree, in a folder of its own that the caller removes. Raises Missing."""
    folder = Path(tempfile.mkdtemp(prefix="tonnage-wheel-")) / "wheels"
    _into(folder, "wheel", "--no-deps", "--no-build-isolation", str(SOURCE), time=time)
    return next(folder.glob("*.whl"))


def _into(folder: Path, action: str, *arguments: str, time: int = 0) -> None:
    """pip writes into a folder that appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    place = f"--{'dest' if action == 'download' else 'wheel-dir'}={unfinished}"
    ended = subprocess.run(
        [sys.executable, "-m", "pip", action, "--quiet", place, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **({"SOURCE_DATE_EPOCH": str(time)} if time else {})},
    )
    if ended.returncode:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise Missing(f"pip {action}: {ended.stderr.strip()[-600:]}")
    try:
        unfinished.rename(folder)
    except OSError:  # another process was quicker
        if not folder.exists():
            raise
        shutil.rmtree(unfinished)


def unpack(wheel: Path, site: str) -> Tree:
    """A wheel's files below `site`; its scripts stay out. Raises ValueError for data of a kind we do not know."""
    tree = Tree()
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = info.filename
            parts = PurePosixPath(path).parts
            if parts[0].endswith(".data"):
                if parts[1] == "scripts":
                    continue
                if parts[1] not in ("purelib", "platlib"):
                    raise ValueError(f"{wheel.name} has {path}: not known where that belongs")
                path = "/".join(parts[2:])
            if info.is_dir() or (_DEPENDENCY_JUNK.search(path) and not path.startswith("tonnage/")):
                continue
            tree[f"{site}/{path}"] = Entry(0o644, archive.read(info))
    return tree
