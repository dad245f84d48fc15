"""Standard streams as a container asks for them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tonnage.kubernetes.api.pods import Container
from tonnage_box.kubelet.containers.stdio import Stdio


@pytest.fixture
def fifos(tmp_path: Path) -> list[str]:
    paths = [str(tmp_path / name) for name in ("out", "err")]
    for path in paths:
        os.mkfifo(path)
    return paths


def test_without_input(fifos: list[str]) -> None:
    made = Stdio.open(Container(name="c"), 0, fifos)
    assert (made.theirs[0], made.stdin) == (subprocess.DEVNULL, -1)
    made.close()


def test_with_input(fifos: list[str]) -> None:
    made = Stdio.open(Container(name="c", stdin=True), 0, fifos)
    os.write(made.stdin, b"x")
    assert os.read(made.theirs[0], 5) == b"x"
    made.close()
    made.close()


def test_with_a_terminal(fifos: list[str]) -> None:
    made = Stdio.open(Container(name="c", tty=True), 0, fifos)
    assert len(set(made.theirs)) == 1
    assert os.isatty(made.theirs[0])
    made.close_theirs()
    with pytest.raises(OSError, match="Input/output error"):
        os.read(made.stdin, 1)
    made.close()
