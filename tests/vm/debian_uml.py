#!/usr/bin/env python3
"""The newest user-mode Linux of Debian, which starts programs some five times faster than that of a stable release.

From 6.16 on the kernel traps the system calls of processes by seccomp(2) instead of ptrace(2) (`seccomp=on`). Its
packages, of Debian's unstable distribution, are downloaded and unpacked, never installed, and kept in the user's cache.
The kernel needs a newer C library than the machine may have, so it is told to use that of the same distribution. Run as
a program, it gets the kernel (`make debian-test` does that); uml.py only looks for it. Standard library, apt-get and
dpkg only; no privilege.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vm.debian_kernel import Unobtainable, cache_folder, call, locked
else:
    from debian_kernel import Unobtainable, cache_folder, call, locked  # beside this file, for uml.py

_DISTRIBUTION, _PACKAGE = "sid", "user-mode-linux"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_PATIENCE = 300.0


@dataclass(frozen=True)
class Kernel:
    """A kernel that runs here. modules: a folder with modules.dep."""

    program: Path
    modules: Path


def find() -> Kernel | None:
    """The kernel that was obtained, or None."""
    for program in cache_folder("uml").glob(f"{_PACKAGE}_*/linux"):
        return Kernel(program, next(program.parent.glob("usr/lib/uml/modules/*/modules.dep")).parent)
    return None


def obtain() -> None:
    """Get the kernel where none is kept. Raises Unobtainable: no archive can be reached, or it does not run here."""
    cache = cache_folder("uml")
    with locked(cache / "lock"), tempfile.TemporaryDirectory(dir=cache) as made:
        if find():
            return
        _download(Path(made))
        (package,) = Path(made).glob(f"{_PACKAGE}_*.deb")
        folder = cache / package.stem
        for deb in Path(made).glob("*.deb"):
            call(["dpkg", "-x", str(deb), str(folder)])
        _try(_with_its_library(folder), Path(made)).rename(folder / "linux")


def _download(folder: Path) -> None:
    """The packages, from the machine's own mirror and verified by its keys."""
    mirrors = call(["apt-get", "indextargets", "--format", "$(REPO_URI)"]).split()
    if not mirrors:
        raise Unobtainable("apt knows no mirror of Debian")
    (folder / "sources").write_text(f"deb {mirrors[0]} {_DISTRIBUTION} main\n")
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    apart = {
        "Dir::Etc::sourcelist": folder / "sources",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": folder / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
    }
    apt = ["apt-get", "-qq", *(word for name, value in apart.items() for word in ("-o", f"{name}={value}"))]
    call([*apt, "update"])
    call([*apt, "download", _PACKAGE, "libc6"], folder)
    call(["apt-get", "-qq", "download", "patchelf"], folder)


def _with_its_library(folder: Path) -> Path:
    """The program that finds its C library in the folder."""
    made, library = folder / "linux.new", folder / _LIBRARIES
    loader = ["--set-interpreter", str(library / "ld-linux-x86-64.so.2"), "--set-rpath", str(library)]
    patchelf = str(folder / "usr/bin/patchelf")
    call([patchelf, *loader, "--output", str(made), str(folder / "usr/bin/linux.uml")])
    return made


def _try(program: Path, sockets: Path) -> Path:
    """Boot with a first process that ends at once, at which the kernel panics with its exit code."""
    words = [str(program), "seccomp=on", "mem=128M", "rootfstype=hostfs", "rootflags=/", "init=/bin/true", "panic=-1"]
    words += [f"uml_dir={sockets}", "umid=tried", "con=null", "con0=null,fd:1"]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise Unobtainable(f"{program}: {failure}") from failure
    if "exitcode=0x00000000" not in ended.stdout + ended.stderr:
        raise Unobtainable(f"{program} does not run here: {ended.stdout[-500:]}")
    return program


if __name__ == "__main__":
    try:
        obtain()
    except Unobtainable as reason:
        print(f"setup: no user-mode Linux of Debian's {_DISTRIBUTION}, so its guests are slower: {reason}")
