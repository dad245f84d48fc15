"""Builds programs from pinned Go modules, with progress. Used by `make programs` and by `python -m cluster up`.

Each program is renamed into place when it is complete, so a build that was stopped goes on where it ended.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_UNREACHABLE = (
    "dial tcp",
    "no such host",
    "403 Forbidden",
    "i/o timeout",
    "connection refused",
    "lookup disabled",
    "requires go >=",
    "toolchain not available",
)
"""What `go build` prints where a module or toolchain cannot be downloaded."""
NO_BUILD = "TONNAGE_NO_BUILD"
"""Variable of the environment by which build() only looks: that of all tests (tests/conftest.py)."""
_PROGRESS_SECONDS = 60.0
_POLL_SECONDS = 0.2

Say = Callable[[str], None]


class Missing(Exception):
    """Something that the machine does not have; the message says what and how to get it."""


@dataclass(frozen=True)
class Program:
    """A program to build. source: the folder of its Go module. package: what to build there. path: the file to make.
    flags: more flags of Go's command, which is `go build`, or `go test -c` where is_test."""

    name: str
    source: Path
    package: str
    path: Path
    flags: tuple[str, ...] = ()
    is_test: bool = False


def cache() -> Path:
    """The user's cache folder of this project, outside the tree."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tonnage"


def tell(text: str) -> None:
    """Print a line at once, also into a pipe: who waits for a build wants to know now."""
    print(text, flush=True)


def check(programs: Sequence[Program], *, command: str = "make programs") -> None:
    """Look whether they are built. command: what builds them. Raises Missing."""
    if absent := [program.name for program in programs if not program.path.exists()]:
        raise Missing(f"not built: {', '.join(absent)} ({command})")


def build(programs: Sequence[Program], *, say: Say = tell, lock: Path | None = None) -> None:
    """Build the programs that are missing, one after the other. Blocking, without a time limit. Idempotent.

    Only one process builds at a time; others wait and say for whom. say: gets lines of progress. lock: the lock file,
    by default one for all programs. Raises Missing where Go or the modules cannot be had, and where NO_BUILD is set;
    RuntimeError with Go's output where a program does not compile.
    """
    missing = [program for program in programs if not program.path.exists()]
    if not missing:
        return
    if os.environ.get(NO_BUILD):
        check(missing)
    with _locked(lock or cache() / "build.lock", say) as held:
        for number, program in enumerate(missing, 1):
            if not program.path.exists():  # another process may have built it while we waited
                _build(program, f"{program.name}, {number} of {len(missing)}", held, say)


@contextmanager
def _locked(path: Path, say: Say) -> Iterator[IO[str]]:
    """The lock; its file says who holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        begun = time.monotonic()
        said = -_PROGRESS_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - begun
                if waited - said >= _PROGRESS_SECONDS:
                    said = waited
                    say(f"waiting for {path.read_text().strip() or 'another process'}, {_minutes(waited)}")
                time.sleep(_POLL_SECONDS)
        _name_holder(file, f"process {os.getpid()}")  # else that of a process that is gone
        yield file


def _name_holder(file: IO[str], holder: str) -> None:
    file.truncate(0)
    file.write(holder)
    file.flush()


def _build(program: Program, what: str, held: IO[str], say: Say) -> None:
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if go is None:
        raise Missing(f"Go is not there, which builds {program.name} (or put it at {program.path})")
    program.path.parent.mkdir(parents=True, exist_ok=True)
    _name_holder(held, f"process {os.getpid()}, which builds {what}")
    unfinished = program.path.with_name(f".{program.name}.{os.getpid()}")
    verb = ("test", "-c") if program.is_test else ("build",)
    command = [go, *verb, "-mod=readonly", *program.flags, "-o", str(unfinished), program.package]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "auto"}
    try:
        with tempfile.TemporaryFile() as output:
            code = _run(command, program.source, environment, output, lambda took: say(f"building {what}, {took}"))
            output.seek(0)
            text = output.read().decode(errors="replace")
        if any(word in text for word in _UNREACHABLE):
            raise Missing(f"the Go modules of {program.name} cannot be had: {text.strip().splitlines()[-1]}")
        if code:
            raise RuntimeError(f"{' '.join(command)}: {text[-2000:]}")
        unfinished.rename(program.path)
    finally:
        unfinished.unlink(missing_ok=True)


def _run(command: Sequence[str], folder: Path, environment: dict[str, str], output: IO[bytes], progress: Say) -> int:
    """Run it to its end, with progress each minute; its exit code."""
    begun = time.monotonic()
    progress(_minutes(0))
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    try:
        while True:
            try:
                return process.wait(_PROGRESS_SECONDS)
            except subprocess.TimeoutExpired:
                progress(_minutes(time.monotonic() - begun))
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"
