"""The bare Debian as the image of a disk, made once with debootstrap and kept in the user's cache."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.gobuild import Missing, cache, tell

CODENAMES = {12: "bookworm", 13: "trixie"}
PACKAGES = "python3,git,make,ca-certificates"
USER = "stranger"
"""A user of the bare system who is not root."""
_MAX_AGE_DAYS = 30
_DISK = "40G"  # sparse
_SUITES = ("bullseye", "forky", "sid", "stable", "oldstable", "testing", "unstable", *CODENAMES.values())
_POCKETS = ("", "-updates", "-security")
_ISOLATED = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--")


@dataclass(frozen=True)
class Source:
    """One suite of one archive of packages."""

    uri: str
    suite: str
    components: tuple[str, ...]


def parse_list(text: str) -> list[Source]:
    """The binary packages of a file sources.list."""
    found = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words[:1] != ["deb"]:
            continue
        while words[1].startswith("[") and not words[1].endswith("]"):
            words[1:3] = [words[1] + words[2]]
        uri, suite, *components = words[2:] if words[1].startswith("[") else words[1:]
        found.append(Source(uri, suite, tuple(components)))
    return found


def parse_deb822(text: str) -> list[Source]:
    """The binary packages of a file NAME.sources."""
    found = []
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    for stanza in "\n".join(lines).split("\n\n"):
        fields: dict[str, list[str]] = {}
        name = ""
        for line in stanza.splitlines():
            if not line.startswith((" ", "\t")):
                name, _, line = line.partition(":")
            fields.setdefault(name.strip().lower(), []).extend(line.split())
        if "deb" in fields.get("types", []) and fields.get("enabled") != ["no"]:
            components = tuple(fields.get("components", []))
            found += [Source(uri, suite, components) for uri in fields["uris"] for suite in fields["suites"]]
    return found


def machine_sources(apt: Path) -> list[Source]:
    """What this machine installs from. apt: the folder /etc/apt."""
    lists = [apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))]
    found = [source for path in lists if path.exists() for source in parse_list(path.read_text())]
    return found + [
        source for path in sorted(apt.glob("sources.list.d/*.sources")) for source in parse_deb822(path.read_text())
    ]


def bare_sources(machine: Sequence[Source], number: int) -> list[Source]:
    """The same archives for that Debian, its main suite first. Raises Missing where the machine has none."""
    found: dict[Source, None] = {}
    for pocket in _POCKETS:
        for source in machine:
            if "main" in source.components and source.suite in [name + pocket for name in _SUITES]:
                found[Source(source.uri, CODENAMES[number] + pocket, ("main",))] = None
    if not any(source.suite == CODENAMES[number] for source in found):
        raise Missing(
            "make fresh: no archive of Debian is in this machine's apt sources; "
            "run it on Debian, or add one to /etc/apt/sources.list.d"
        )
    return list(found)


def check_network(source: Source) -> None:
    """Raises Missing where that archive cannot be reached with apt's own settings."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"{source.uri.rstrip('/')}/dists/{source.suite}/InRelease"
        command = ["/usr/lib/apt/apt-helper", "download-file", url, f"{folder}/InRelease"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            raise Missing(
                f"make fresh: {source.uri} of this machine's apt sources does not answer for Debian's {source.suite}; "
                "check the network and apt's proxy"
            )


def ensure(number: int, mirror: Source) -> Path:
    """The image of that bare Debian, not older than 30 days. Blocking, some minutes when it is made.

    Raises Missing where debootstrap cannot be had, RuntimeError with its output where it fails.
    """
    folder = cache() / "fresh"
    folder.mkdir(parents=True, exist_ok=True)
    image = folder / f"debian-{number}.ext4"
    with (folder / f"debian-{number}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if image.exists() and time.time() - image.stat().st_mtime < _MAX_AGE_DAYS * 24 * 3600:
            return image
        _ensure_debootstrap()
        tell(f"fresh: making the bare Debian {number}, once in {_MAX_AGE_DAYS} days")
        begun = time.monotonic()
        for left in folder.glob(f"new-{number}-*"):  # of a run that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=f"new-{number}-", dir=folder) as temporary:
            _make(Path(temporary), mirror).rename(image)
        tell(f"fresh: made in {time.monotonic() - begun:.0f} s: {image}")
    return image


def _ensure_debootstrap() -> None:
    if shutil.which("debootstrap"):
        return
    if not shutil.which("apt-get"):
        raise Missing("make fresh: debootstrap is not installed, and there is no apt; install debootstrap")
    install = ["apt-get", "install", "-y", "-qq", "debootstrap"]
    for command in (install, ["apt-get", "update", "-qq"], install):
        subprocess.run(command, capture_output=True, check=False)
        if shutil.which("debootstrap"):
            return
    raise Missing("make fresh: debootstrap cannot be installed; see: apt-get install debootstrap")


def _make(folder: Path, mirror: Source) -> Path:
    root, image = folder / "root", folder / "image"
    bootstrap = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", mirror.suite, str(root), mirror.uri]
    run([*_ISOLATED, *bootstrap])  # a kill leaves neither mounts nor processes
    run(["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", USER])
    run(["chroot", str(root), "apt-get", "clean"])
    for entry in (root / "var/lib/apt/lists").iterdir():  # as in the usual images
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    run(["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(image), _DISK])
    return image


def run(command: Sequence[str]) -> None:
    """Run a command. Raises RuntimeError with the end of its output where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"make fresh: {' '.join(command)}: ended with {done.returncode}:\n{done.stdout[-4000:]}")
