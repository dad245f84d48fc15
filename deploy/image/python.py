"""The image's own Python, run on this machine without a container: compiles its modules, finds libraries that lack."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.image import debian
from deploy.image.archive import Entry, Tree

_LOADER = re.compile(r"usr/lib/([^/]+)/ld-linux[^/]*\.so\.\d")
_COMPILE = ("-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash")


class Broken(Exception):
    """The image would not work; the message says what lacks."""


def version(tree: Mapping[str, Entry]) -> str:
    """Of the tree's Python, as 3.11."""
    found = re.fullmatch(r"python(3\.\d+)", tree["usr/bin/python3"].link.rpartition("/")[2])
    assert found, "python3 is no link to python3.N"
    return found[1]


class Unpacked:
    """A tree as files below a folder, and its programs. architecture: Debian's word. Raises Missing."""

    def __init__(self, tree: Mapping[str, Entry], folder: Path, architecture: str) -> None:
        self._tree, self._folder = tree, folder
        for path, entry in tree.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if entry.link:
                # Seen from the folder, as the loader follows them here.
                target = f"{folder}{entry.link}" if entry.link.startswith("/") else entry.link
                place.symlink_to(target)
            elif entry.data is None:
                place.mkdir(exist_ok=True)
            else:
                place.write_bytes(entry.data)
                place.chmod(entry.mode | 0o600)
        loader = next(path for path in tree if _LOADER.fullmatch(path))
        self._libraries = ["--library-path", f"{folder}/{Path(loader).parent}"]
        self._loader = [*debian.emulator(architecture), str(folder / loader)]
        self._start = [*self._loader, *self._libraries]

    def compiled(self, below: Sequence[str]) -> Tree:
        """Byte code of the modules below those folders, which never looks at the times of their files.

        Containers run on a read-only root: what is not compiled now is compiled at every start.
        """
        home = {"PYTHONHOME": f"{self._folder}/usr", "PYTHONHASHSEED": "0", "PATH": "/nonexistent"}
        python = f"{self._folder}/usr/bin/python{version(self._tree)}"
        command = [*self._start, python, "-S", "-s", *_COMPILE, "-s", str(self._folder), "-p", "/"]
        ended = subprocess.run(
            [*command, *(str(self._folder / path) for path in below)],
            env=home, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ended.returncode:
            raise Broken(f"byte code: {(ended.stdout + ended.stderr)[-1000:]}")
        found = (file for path in below for file in (self._folder / path).rglob("*.pyc"))
        return {str(file.relative_to(self._folder)): Entry(0o644, file.read_bytes()) for file in found}

    def check_libraries(self) -> None:
        """Every program and library finds the libraries that it was linked with. Raises Broken."""
        broken = {}
        for path, entry in self._tree.items():
            if entry.data is None or not entry.data.startswith(b"\x7fELF") or _LOADER.fullmatch(path):
                continue
            ended = subprocess.run(
                [*self._loader, "--inhibit-cache", *self._libraries, "--list", str(self._folder / path)],
                capture_output=True, text=True, check=False, env={},
            )  # fmt: skip
            said = ended.stdout + ended.stderr
            needed = [line for line in ended.stdout.splitlines() if " => " in line]
            outside = [line for line in needed if not line.split(" => ")[1].startswith(str(self._folder))]
            if "statically linked" not in said and (ended.returncode or outside):
                broken[path] = outside or [said.strip()[-300:]]
        if broken:
            raise Broken("; ".join(f"{path}: {', '.join(map(str.strip, lines))}" for path, lines in broken.items()))
