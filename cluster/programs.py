"""Kubernetes' own programs, built once from pinned Go modules and kept in the user's cache, outside the tree."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "modules"
CHOICE = "TONNAGE_KUBERNETES"
"""Variable of the environment that chooses another release than the current one, as 1.30: those of modules/."""
_UNREACHABLE = ("dial tcp", "no such host", "403 Forbidden", "i/o timeout", "connection refused", "lookup disabled")


class Missing(Exception):
    """Something that the machine does not have; the message says what and how to get it."""


@dataclass(frozen=True)
class Build:
    """One Go module and the programs that are its tools, by their package paths."""

    module: str
    tools: tuple[str, ...]
    version_of: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The programs' names."""
        return tuple(_name(tool) for tool in self.tools)


def _kubernetes() -> str:
    """The module of the release that was chosen. Raises Missing."""
    release = os.environ.get(CHOICE, "")
    name = f"kubernetes-{release}" if release else "kubernetes"
    if not re.fullmatch(r"kubernetes(-1\.\d+)?", name) or not (MODULES / name).is_dir():
        there = sorted(path.name.partition("-")[2] for path in MODULES.glob("kubernetes-*"))
        raise Missing(f"{CHOICE}={release}: there is {', '.join(there)}, or nothing for the current release")
    return name


BUILDS = (
    Build(
        _kubernetes(),
        tuple(
            f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
        ),
        "k8s.io/kubernetes",
    ),
    Build("etcd", ("go.etcd.io/etcd/server/v3",)),
    Build(
        "containerd",
        tuple(
            f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        ),
    ),
)


def _name(tool: str) -> str:
    return "etcd" if tool.startswith("go.etcd.io") else tool.rpartition("/")[2]


def folder(*, kubernetes: str = BUILDS[0].module) -> Path:
    """Where the programs lie, one folder for each state of the pinned modules."""
    digest = hashlib.sha256()
    for module in (kubernetes, *(build.module for build in BUILDS[1:])):
        for file in ("go.mod", "go.sum"):
            digest.update((MODULES / module / file).read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "tonnage" / "cluster-bin" / digest.hexdigest()[:16]


def version() -> str:
    """The pinned release of Kubernetes, as v1.36.3."""
    text = (MODULES / BUILDS[0].module / "go.mod").read_text()
    found = re.search(r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", text, re.M)
    assert found, "go.mod names no k8s.io/kubernetes"
    return found[1]


def ensure(*, quiet: bool = False) -> Path:
    """Build what is missing and return the folder. The first time this takes about ten minutes on two cores.

    Raises Missing where Go or the modules cannot be had. May be called by several processes at once.
    """
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for build in BUILDS:
            if build is not BUILDS[0]:
                _link(build, folder(kubernetes="kubernetes"), place)
            if missing := [tool for tool in build.tools if not (place / _name(tool)).exists()]:
                if not quiet:
                    print(f"building {', '.join(map(_name, missing))} from {build.module}'s Go module", flush=True)
                _build(build, missing, place)
    return place


def _link(build: Build, other: Path, place: Path) -> None:
    """Have the programs that another release has as well, where they are built."""
    for name in build.names:
        if other != place and (other / name).exists() and not (place / name).exists():
            os.link(other / name, place / name)


def _build(build: Build, tools: Sequence[str], place: Path) -> None:
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if go is None:
        raise Missing(f"Go is not there, which builds {', '.join(map(_name, tools))} (or put them into {place})")
    unfinished = place / f".{os.getpid()}"
    for tool in tools:  # one after the other: linked together they would take more memory than needed
        command = [go, "build", "-mod=readonly", "-ldflags", _flags(build), "-o", str(unfinished), tool]
        ended = subprocess.run(
            command,
            cwd=MODULES / build.module,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"},
        )
        if any(word in ended.stderr for word in _UNREACHABLE):
            raise Missing(f"the Go modules of {build.module} cannot be had: {ended.stderr.strip().splitlines()[-1]}")
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)}: {ended.stderr[-2000:]}")
        unfinished.rename(place / _name(tool))


def _flags(build: Build) -> str:
    flags = "-s -w"
    if build.version_of:
        major, minor, _ = version().removeprefix("v").split(".")
        for key, value in (("gitVersion", version()), ("gitMajor", major), ("gitMinor", minor)):
            flags += f" -X k8s.io/component-base/version.{key}={value}"
    return flags


def debian(name: str, package: str, *places: str) -> Path:
    """A program of a Debian package. Raises Missing."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    found = shutil.which(name, path=":".join([path, *places]))
    if found is None:
        raise Missing(f"{name} is not there (Debian: apt-get install {package})")
    return Path(found)
