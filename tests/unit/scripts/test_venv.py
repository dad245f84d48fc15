"""What stops the set-up of the virtual environment is one sentence; a second set-up waits for the first."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "venv"
TOO_OLD = '#!/bin/sh\ncase "$*" in *"(3, 11)"*) exit 1 ;; *--version*) echo Python 3.10.13 ;; esac\n'
NO_VENV = '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; *--version*) echo Python 3.11.2 ;; esac\n'
CANNOT_INSTALL = """#!/bin/sh
# Makes an environment whose Python is this file; its pip prints what the real one does.
case "$*" in
*"venv --clear"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*"(3, 15)"*) exit %d ;;
*--version*) echo Python 3.15.0 ;;
*"pip install"*) printf '%%s\\n' "%s"; exit 1 ;;
esac
"""
OFFLINE = """WARNING: Retrying after connection broken by 'NewConnectionError'
ERROR: Could not find a version that satisfies the requirement server==1.0 (from versions: none)
ERROR: No matching distribution found for server==1.0"""
FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project's files that the script reads, below a folder whose name has a space."""
    root = tmp_path / "a b"
    (root / "constraints").mkdir(parents=True)
    (root / "constraints" / "run.txt").write_text("server==1.0\n")
    (root / "pyproject.toml").touch()
    return root


def command(tree: Path, python: str) -> list[str]:
    """The set-up with a Python of that text."""
    program = tree / "python"
    program.write_text(python)
    program.chmod(0o755)
    return ["sh", str(SCRIPT), "run", str(program), ".venv"]


def failure(tree: Path, words: list[str]) -> str:
    ended = subprocess.run(words, cwd=tree, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1
    assert not (tree / ".venv" / ".ready-run").exists()
    (line,) = ended.stderr.splitlines()
    return line


def test_no_such_python(tree: Path) -> None:
    assert "there is no python9; name one" in failure(tree, ["sh", str(SCRIPT), "run", "python9", ".venv"])


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        (TOO_OLD, "is Python 3.10.13. Try: make PYTHON="),
        (NO_VENV, "cannot make virtual environments; Debian, as root: apt-get install python3-venv"),
        (CANNOT_INSTALL % (0, OFFLINE), "the package index cannot be reached. The same make goes on from here."),
        (CANNOT_INSTALL % (0, FULL), "[Errno 28] No space left on device. The same make goes on from here."),
        (CANNOT_INSTALL % (1, FULL), "Python 3.15.0 is newer than what its versions are for, 3.11 to 3.14; try: make"),
    ],
    ids=["too old", "no venv", "no network", "no space", "too new"],
)
def test_one_sentence(tree: Path, python: str, sentence: str) -> None:
    assert sentence in failure(tree, command(tree, python))


def test_a_second_set_up_waits_and_installs_nothing_again(tree: Path) -> None:
    with (tree / "pyproject.toml").open() as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        with subprocess.Popen(command(tree, TOO_OLD), cwd=tree, stdout=subprocess.PIPE, text=True) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "setup: another make sets this folder up: waiting for it\n"
            (tree / ".venv").mkdir()
            (tree / ".venv" / ".ready-run").touch()
            fcntl.flock(first, fcntl.LOCK_UN)
            assert second.stdout.read() == ""
    assert second.returncode == 0
