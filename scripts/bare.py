"""Runs a command where no program is but those of a bare Debian, git, make and Python: no test needs another by chance.

    python -m scripts.bare FOLDER COMMAND [ARGUMENT]...

As root, in a mount namespace of the caller's, folders of these programs lie over /usr/bin and its like: tonnage itself
looks there, whatever PATH is. Others only get a PATH of such folders. FOLDER: an empty one for them. Where there is no
dpkg, which tells whose the programs are, the command runs as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
ADDED, OPTIONAL = ("git", "make"), "e2fsprogs"
"""Packages that a bare Debian with what README.md asks for has as well; one that it has, and tests look for."""


def main(arguments: list[str]) -> None:
    """Become the command."""
    folder, command = Path(arguments[0]), arguments[1:]
    if shutil.which("dpkg-query"):
        os.environ["PATH"] = _narrowed(folder, is_root=os.geteuid() == 0)
    os.execvp(command[0], command)


def _narrowed(folder: Path, *, is_root: bool) -> str:
    """Lay folders over those of all programs, where that may be done; the PATH."""
    if is_root:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "bare", folder], check=True)
    allowed, places = set(_files()), sorted({Path(place).resolve() for place in FOLDERS if Path(place).is_dir()})
    narrow = {place: folder / place.as_posix().strip("/").replace("/", "-") for place in places}
    for place, copy in narrow.items():
        copy.mkdir()
        for program in place.iterdir():
            if program.name.startswith("python3") or not allowed.isdisjoint((str(program), str(program.resolve()))):
                if is_root:
                    shutil.copy2(program, copy / program.name, follow_symlinks=False)
                else:
                    (copy / program.name).symlink_to(program)
    if not is_root:
        return os.pathsep.join(map(str, narrow.values()))
    for place, copy in narrow.items():
        subprocess.run(["mount", "--bind", copy, place], check=True)
    return os.pathsep.join(FOLDERS)


def _files() -> Iterator[str]:
    """Files of the packages, as dpkg knows them: with and without the links of /bin and /sbin into /usr."""
    form = "${Essential} ${Priority} ${Package}\n"
    listed = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    packages = [row[-1] for row in rows if "yes" in row[:-1] or "required" in row[:-1] or row[-1] in ADDED]
    command = ["dpkg", "-L", *(name for name in packages if name != OPTIONAL)]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        yield from (line, f"/usr{line}")


if __name__ == "__main__":
    main(sys.argv[1:])
