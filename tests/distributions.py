"""The wheels of tonnage and tonnage-box, installed in environments of their own that see nothing of the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"[\w.-]+")


def wheels(folder: Path) -> tuple[Path, Path]:
    """Build the wheels of tonnage and of tonnage-box into a folder."""
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT), str(ROOT / "box"))  # fmt: skip
    return next(folder.glob("tonnage-*.whl")), next(folder.glob("tonnage_box-*.whl"))


def environment(folder: Path, *built: Path) -> Path:
    """Make an environment with these wheels and what tonnage needs; its folder of programs.

    Dependencies are links to those of this environment: no network is needed.
    """
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in sorted(_needed("tonnage")):
        _link(name, site)
    python = folder / "bin/python"
    _run(
        sys.executable,
        "-m",
        "pip",
        "-q",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        *map(str, built),
    )
    return folder / "bin"


def _needed(name: str) -> set[str]:
    """The distributions that one needs without extras, and what those need; those of other systems are not here."""
    found: set[str] = set()
    todo = [name]
    while todo:
        for text in distribution(todo.pop()).requires or ():
            if "extra ==" in text or "extra==" in text or (match := _NAME.match(text)) is None:
                continue
            if match[0] not in found and _is_here(match[0]):
                found.add(match[0])
                todo.append(match[0])
    return found


def _is_here(name: str) -> bool:
    try:
        return bool(distribution(name))
    except ModuleNotFoundError:
        return False


def _link(name: str, site: Path) -> None:
    files = distribution(name).files or []
    for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
        at = site / top
        if not at.is_symlink():
            at.symlink_to(Path(str(distribution(name).locate_file(top))))


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir())
    assert ended.returncode == 0, ended.stderr


def clean_environ() -> dict[str, str]:
    """The variables of this process without those that lead Python to other modules."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def tops(wheel: Path) -> Iterator[str]:
    """The packages in a wheel."""
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        yield from sorted({name.partition("/")[0] for name in archive.namelist() if ".dist-info" not in name})
