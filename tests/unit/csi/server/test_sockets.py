"""Private sockets, taken over safely."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError, PreconditionError
from tonnage.csi.server import sockets


def test_only_the_owner_may_open_it(folder: Path) -> None:
    path = folder / "new" / "csi.sock"
    with sockets.bind_private(path):
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.lstat(path.parent).st_mode) == 0o700
        assert os.listdir(path.parent) == ["csi.sock"], "nothing else is left"


def test_what_a_killed_process_left_half_made_is_replaced(folder: Path) -> None:
    path = folder / "csi.sock"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: os._exit(9))
        if (child := os.fork()) == 0:
            sockets.bind_private(path)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len(os.listdir(folder)) == 1
    with sockets.bind_private(path):
        assert os.listdir(folder) == ["csi.sock"]


def test_a_dead_process_socket_is_replaced(folder: Path) -> None:
    path = folder / "csi.sock"
    sockets.bind_private(path).close()
    assert path.exists()
    with sockets.bind_private(path), socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))


def test_a_living_one_is_not(folder: Path) -> None:
    path = folder / "csi.sock"
    with sockets.bind_private(path):
        inode = sockets.inode_of(path)
        with pytest.raises(PreconditionError, match="another process serves"):
            sockets.bind_private(path)
        assert sockets.inode_of(path) == inode


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_is_no_socket_is_left_alone(folder: Path, kind: str) -> None:
    path, other = folder / "csi.sock", folder / "other"
    other.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "link":
        path.symlink_to(other)
    else:
        path.mkdir()
    with pytest.raises(InvalidError, match="not a socket"):
        sockets.bind_private(path)
    assert os.path.lexists(path)
    assert other.read_text() == "precious"


def test_a_path_that_no_socket_can_have(folder: Path) -> None:
    with pytest.raises(InvalidError, match="Linux takes 107"):
        sockets.bind_private(folder / ("x" * 107))


def test_a_successor_is_not_removed(folder: Path) -> None:
    path = folder / "csi.sock"
    with sockets.bind_private(path):
        old = sockets.inode_of(path)
    with sockets.bind_private(path):
        if sockets.inode_of(path) != old:  # file systems may give the number again
            sockets.remove_if_same(path, old)
            assert path.exists()
        sockets.remove_if_same(path, sockets.inode_of(path))
        assert not path.exists()
        sockets.remove_if_same(path, 0)
