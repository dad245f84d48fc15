"""Kubernetes' own programs, built from pinned Go modules and kept in the user's cache, outside the tree."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.gobuild import Missing as Missing
from cluster.gobuild import Program, Say, build, cache, check, tell

MODULES = Path(__file__).parent / "modules"
CHOICE = "TONNAGE_KUBERNETES"
"""Variable of the environment: another release than the current one, as 1.30; scripts/pin_kubernetes.py adds one."""
OLDEST_KUBECTL = (1, 30)
PACKAGES: Mapping[str, str] = {
    "btrfs": "btrfs-progs",
    "busybox": "busybox-static",
    "bwrap": "bubblewrap",
    "containerd": "containerd",
    "ctr": "containerd",
    "e2fsck": "e2fsprogs",
    "e2image": "e2fsprogs",
    "host-local": "containernetworking-plugins",
    "ip": "iproute2",
    "iscsid": "open-iscsi",
    "lsscsi": "lsscsi",
    "lua5.1": "lua5.1",
    "lvm": "lvm2",
    "memcached": "memcached",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "ndctl": "ndctl",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "runc": "runc",
    "secilc": "secilc",
    "setpriv": "util-linux",
    "sg_scan": "sg3-utils",
    "ssh-keygen": "openssh-client",
    "systemd-udevd": "udev",
    "unshare": "util-linux",
}
"""Program -> the Debian package that has it."""
_PLACES = ("/usr/sbin", "/sbin", "/usr/lib/cni", "/usr/lib/systemd", "/lib/systemd")
"""Folders of programs that are not in every PATH."""


@dataclass(frozen=True)
class Build:
    """One Go module and the programs that are its tools, by their package paths."""

    module: str
    tools: tuple[str, ...]
    is_versioned: bool = False
    """Whether its programs print the version of k8s.io/kubernetes."""


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
        is_versioned=True,
    ),
    Build("kubectl", ("k8s.io/kubernetes/cmd/kubectl",), is_versioned=True),
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
    for module in (kubernetes, *(each.module for each in BUILDS[1:])):
        for file in ("go.mod", "go.sum"):
            digest.update((MODULES / module / file).read_bytes())
    return cache() / "cluster-bin" / digest.hexdigest()[:16]


def version(module: Path = MODULES / BUILDS[0].module) -> str:
    """The release of Kubernetes that the Go module in that folder pins, as v1.36.3."""
    text = (module / "go.mod").read_text()
    found = re.search(r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", text, re.M)
    assert found, "go.mod names no k8s.io/kubernetes"
    return found[1]


def find() -> Path:
    """The folder with all programs. Raises Missing where one is not built: tests never build."""
    place = folder()
    _link_others(place)
    check(_programs(place))
    return place


def ensure(*, say: Say = tell) -> Path:
    """Build what is missing and return the folder. Blocking: a first build takes about ten minutes on two cores.

    Raises Missing where Go or the modules cannot be had. May be called by several processes at once.
    """
    place = folder()
    _link_others(place)
    build(_programs(place), say=say)
    return place


def _programs(place: Path) -> list[Program]:
    return [
        Program(_name(tool), MODULES / each.module, tool, place / _name(tool), ("-ldflags", _linker_flags(each)))
        for each in BUILDS
        for tool in each.tools
    ]


def _link_others(place: Path) -> None:
    """Link the programs that another release of Kubernetes shares and that are built there."""
    other = folder(kubernetes="kubernetes")
    if other == place:
        return
    place.mkdir(parents=True, exist_ok=True)
    for each in BUILDS[1:]:
        for tool in each.tools:
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.link(other / _name(tool), place / _name(tool))


def _linker_flags(of: Build) -> str:
    return versioned(MODULES / of.module) if of.is_versioned else "-s -w"


def versioned(module: Path) -> str:
    """The linker's flags for programs that print the release of Kubernetes, which the module in that folder pins."""
    release = version(module)
    major, minor, _ = release.removeprefix("v").split(".")
    values = (("gitVersion", release), ("gitMajor", major), ("gitMinor", minor))
    return "-s -w" + "".join(f" -X k8s.io/component-base/version.{key}={value}" for key, value in values)


@functools.cache
def kubectl() -> Path:
    """A kubectl that is new enough: the one in PATH, else the one that is built here. Raises Missing."""
    built = folder() / "kubectl"
    why = "kubectl is not there"
    for program in filter(None, (shutil.which("kubectl"), str(built) if built.exists() else None)):
        release = _release(program)
        if release >= OLDEST_KUBECTL:
            return Path(program)
        why = f"{program} is {'.'.join(map(str, release))}"
    raise Missing(f"{why}: needs {'.'.join(map(str, OLDEST_KUBECTL))} or newer (make programs builds one)")


def _release(program: str) -> tuple[int, int]:
    """Major and minor version of a kubectl, (0, 0) where it does not say."""
    command = [program, "version", "--client", "-o", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r'"gitVersion": "v(\d+)\.(\d+)', ended.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def debian(name: str) -> Path:
    """A program of the table PACKAGES. Raises Missing."""
    package = PACKAGES[name]  # an unknown name fails everywhere
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *_PLACES]))
    if found is None:
        raise Missing(f"needs {name} (Debian: apt-get install {package})")
    return Path(found)
