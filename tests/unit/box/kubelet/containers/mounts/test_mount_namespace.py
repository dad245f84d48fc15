"""A thread in another process's mount namespace: its mounts, and no path of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import needs_containers

from tonnage.base.errors import HostError
from tonnage.host import mount
from tonnage.host.descriptor import closing
from tonnage_box.kubelet.containers.mounts import mount_namespace

pytestmark = [pytest.mark.real, needs_containers]
INSIDE = "import time; print(1, flush=True); time.sleep(1000)"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with programs, and a file that only it has."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root/only-here").touch()
    return tmp_path / "root"


@pytest.fixture
def inside(root: Path) -> Iterator[int]:
    """A pidfd of a process whose root it is, in a mount namespace of its own."""
    binds = [part for path in ("/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix) for part in _bind(path)]
    command = [
        "bwrap",
        "--die-with-parent",
        "--bind",
        str(root),
        "/",
        *binds,
        "--",
        sys.executable,
        "-I",
        "-S",
        "-c",
        INSIDE,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        with closing(os.pidfd_open(int(children[0]) if children else process.pid)) as pidfd:
            try:
                yield pidfd
            finally:
                process.kill()


def _bind(path: str) -> list[str]:
    return ["--ro-bind-try", path, path]


def test_the_thread_has_the_mounts_and_no_path(root: Path, inside: int, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume/file").touch()
    seen: list[object] = []

    def work(fd: int) -> None:
        seen.append(os.path.exists("/only-here"))
        seen.append(os.path.exists(tmp_path / "volume"))
        os.mkdir("at", dir_fd=fd)
        with closing(os.open("at", os.O_PATH, dir_fd=fd)) as at, closing(mount.clone(tmp_path / "volume")) as tree:
            mount.attach(tree, at)
        with closing(os.open("at", os.O_RDONLY, dir_fd=fd)) as found:
            seen.append(os.listdir(found))

    with pytest.raises(OSError, match="Invalid argument"):  # a copy that was made there is of mounts of there
        mount_namespace.visit(inside, str(root), work)
    assert seen[:2] == [False, True]
    assert "at" in os.listdir(root)
    with closing(mount.clone(tmp_path / "volume")) as tree:
        mount_namespace.visit(inside, str(root), lambda fd: _attach(fd, tree, seen))
    assert seen[2:] == [["file"]]
    assert os.listdir(root / "at") == []  # this thread has stayed where it was


def _attach(fd: int, tree: int, seen: list[object]) -> None:
    with closing(os.open("at", os.O_PATH, dir_fd=fd)) as at:
        mount.attach(tree, at)
    with closing(os.open("at", os.O_RDONLY, dir_fd=fd)) as found:
        seen.append(os.listdir(found))


def test_another_root_is_rejected(inside: int, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(HostError, match="not the root of the container that was started"):
        mount_namespace.visit(inside, str(tmp_path / "other"), lambda fd: pytest.fail("it was there"))


def test_what_fails_inside_fails_here(inside: int, root: Path) -> None:
    def work(fd: int) -> None:
        raise ValueError(f"descriptor {fd}")

    with pytest.raises(ValueError, match="descriptor"):
        mount_namespace.visit(inside, str(root), work)
