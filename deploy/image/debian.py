"""Debian packages of the release that this machine has: found and downloaded by apt, taken apart here without root."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from deploy.image import contents
from deploy.image.archive import Entry, Tree

_QEMU = {"amd64": "x86_64", "arm64": "aarch64"}


class Missing(Exception):
    """Something that the machine does not have or cannot reach; the message says what and how to get it."""


@dataclass(frozen=True)
class Package:
    """A package's name, and its file in the cache."""

    name: str
    file: Path


def architecture() -> str:
    """Of this machine, as Debian calls it. Raises Missing."""
    return call("dpkg", "--print-architecture").strip()


def emulator(wanted: str) -> list[str]:
    """What runs programs of that architecture here: nothing for the machine's own. Raises Missing."""
    if wanted == architecture():
        return []
    program = f"qemu-{_QEMU[wanted]}-static"
    if (found := shutil.which(program)) is None:
        raise Missing(f"{program} is not there, which runs the programs of {wanted}: apt-get install qemu-user-static")
    return [found]


def fetch(names: Sequence[str], cache: Path, architecture: str) -> list[Package]:
    """The packages and all that they need (but contents.DROPPED), sorted by name; what is not cached is downloaded.

    apt checks them against the signatures of its archives. Raises Missing.
    """
    try:
        return _Apt(cache, architecture).fetch(names)
    except Missing:
        # The machine's lists are older than its archives, were never made, or are of its own architecture.
        return _Apt(cache, architecture, has_own_lists=True).fetch(names)


class _Apt:
    """apt as if nothing was installed; it writes below `cache` only. has_own_lists: instead of the machine's."""

    def __init__(self, cache: Path, architecture: str, *, has_own_lists: bool = False) -> None:
        self._debs, own = cache / "debian", cache / f"apt-{architecture}"
        for folder in (self._debs, own / "archives" / "partial", own / "lists" / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        (own / "status").touch()
        settings = {
            "APT::Architecture": architecture,
            "Dir::State::status": own / "status",
            "Dir::State::extended_states": own / "extended_states",
            "Dir::Cache": own,
            "Dir::Cache::archives": own / "archives",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
            "Debug::NoLocking": "true",
        } | ({"Dir::State::lists": own / "lists"} if has_own_lists else {})
        self._options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        if has_own_lists:
            self._call("update")

    def _call(self, *words: str, cwd: Path | None = None) -> str:
        return call("apt-get", *self._options, "-qq", *words, cwd=cwd)

    def fetch(self, names: Sequence[str]) -> list[Package]:
        """As the function."""
        wanted = sorted(self._solved(names), key=lambda found: found.name)
        absent = [found for found in wanted if not found.file.exists()]
        if absent:
            self._download(absent)
        return wanted

    def _solved(self, names: Sequence[str]) -> Iterator[Package]:
        """From lines `'URI' NAME_VERSION_ARCHITECTURE.deb SIZE HASH`, the version with its ":" quoted."""
        for line in self._call("--print-uris", "-y", "install", *names).splitlines():
            file = line.split()[1]
            name = file.partition("_")[0]
            if not contents.DROPPED.fullmatch(name):
                yield Package(name, self._debs / file)

    def _download(self, absent: Sequence[Package]) -> None:
        """By name and version, into a folder of our own first: what is in the cache is whole."""
        partial = self._debs / f".{os.getpid()}"
        partial.mkdir()
        try:
            versions = [f"{found.name}={unquote(found.file.name.split('_')[1])}" for found in absent]
            self._call("download", *versions, cwd=partial)
            for file in partial.iterdir():
                file.rename(self._debs / file.name)
        finally:
            shutil.rmtree(partial)
        if still := [found.name for found in absent if not found.file.exists()]:
            raise Missing(f"apt did not download {', '.join(still)}")


def unpack(packages: Sequence[Package]) -> tuple[Tree, int]:
    """The files of all packages but what is left out, and the time of the newest of them."""
    tree, newest = Tree(), 0
    for found in packages:
        text = subprocess.run(["dpkg-deb", "--fsys-tarfile", found.file], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(text)) as members:
            for member in members:
                newest = max(newest, int(member.mtime))
                path = contents.merged(str(PurePosixPath(member.name)).removeprefix("./"))
                if path not in (".", "usr/bin", "usr/sbin", "usr/lib") and not contents.is_left_out(path):
                    _take(tree, path, member, members)
        # What a scanner for known faults reads: an image without dpkg keeps each package's own file.
        control = call("dpkg-deb", "--field", str(found.file))
        tree[f"var/lib/dpkg/status.d/{found.name}"] = Entry(0o644, control.encode())
    return tree, newest


def _take(tree: Tree, path: str, member: tarfile.TarInfo, members: tarfile.TarFile) -> None:
    mode = member.mode & 0o1777  # nothing here is to give anybody another user's rights
    if member.isdir():
        return  # folders come with what is in them
    if member.issym():
        tree[path] = Entry(0o777, link=member.linkname)
    elif member.islnk():
        tree[path] = Entry(0o777, link=f"/{contents.merged(member.linkname.removeprefix('./'))}")
    elif member.isreg():
        content = members.extractfile(member)
        assert content is not None
        tree[path] = Entry(mode, content.read())
    else:
        raise ValueError(f"{path} is neither file nor link nor folder")


def call(*command: str, cwd: Path | None = None) -> str:
    """What a program prints. Raises Missing when it is not there or fails."""
    try:
        ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Missing(f"{command[0]} is not there: images are built on Debian and its kin") from None
    if ended.returncode:
        raise Missing(f"{command[0]} failed: {ended.stderr.strip()[-600:]}")
    return ended.stdout
