"""What both kinds of guests need outside: a folder, an order for guest_init.py, a watch over the machine's process.

The machine is a child in a session of its own. Whatever happens to us, nothing of it is left: it ends when we do, and
what it leaves behind is ours to end, as we are the parent of all orphans below us. Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

HUNG, TIMED_OUT, DIED = 123, 124, 125
STILL = 60.0
"""Seconds without a sign of life (guest_init.py gives one every other second) after which a kernel counts as hung."""
_MASKED = ("/dev/", "/run/", "/proc/", "/sys/", "/etc/lvm/")  # what the guest mounts over
_SUBREAPER, _DEATH_SIGNAL = 36, 1  # prctl(2)
_GRACE = 5.0  # seconds for the machine to end in order


@contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """A folder that the guest sees under the same name; at the end it is removed, and all our children are gone."""
    base = tempfile.gettempdir()
    if f"{os.path.realpath(base)}/".startswith(_MASKED):
        base = "/var/tmp"
    made = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=base))
    try:
        yield made
    finally:
        _end_children()
        shutil.rmtree(made, ignore_errors=True)


def order(folder: Path, command: Sequence[str], **more: object) -> None:
    """Write down for guest_init.py what to do; `init` in the folder starts it."""
    what = {"command": list(command), "cwd": os.getcwd(), "env": dict(os.environ), "folder": str(folder), **more}
    (folder / "order.json").write_text(json.dumps(what))
    script = Path(__file__).resolve().with_name("guest_init.py")
    words = [os.path.abspath(sys.executable), "-I", "-S", "-B", str(script), str(folder / "order.json")]
    (folder / "init").write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
    (folder / "init").chmod(0o755)


Boot = Callable[..., int]
"""boot(command, disks=, memory=, timeout=, verbose=): runs it in a guest; its exit code, HUNG, TIMED_OUT or DIED.
timeout: seconds."""


def main(
    arguments: Sequence[str],
    boot: Boot,
    missing: Callable[[], str],
    *,
    name: str,
    disk: str,
    memory: str,
    more: Mapping[str, str] | None = None,
) -> int:
    """The command line of a kind of guests. disk: its option for a scratch disk. missing: says why there can be none.

    more: its other options, all repeatable, with what they are for.
    """
    parser = argparse.ArgumentParser(description=f"run a command in {name}")
    parser.add_argument(disk, dest="disks", action="append", default=[], metavar="SIZE", help="as 512M; repeat")
    parser.add_argument("--memory", default=memory, metavar="SIZE")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--verbose", action="store_true", help="show the kernel's console on standard error")
    parser.add_argument("--check", action="store_true", help="say why no guest can be had here, and end")
    for option, purpose in (more or {}).items():
        parser.add_argument(f"--{option}", action="append", default=[], help=purpose)
    parser.add_argument("command", nargs="*")
    given = parser.parse_args(arguments)
    reason = missing()
    if given.check:
        print(reason)
        return 0
    if reason or not given.command:
        print(f"{name}: {reason or 'what is to be run?'}", file=sys.stderr)
        return DIED
    _prepare_process()
    others = {option: getattr(given, option) for option in more or {}}
    return boot(
        given.command,
        disks=given.disks,
        memory=given.memory,
        timeout=given.timeout,
        verbose=given.verbose,
        **others,
    )


def _prepare_process() -> None:
    """End in order on signals, adopt orphans, and end when our parent does."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _terminated)
    _prctl(_SUBREAPER, 1)
    _prctl(_DEATH_SIGNAL, signal.SIGTERM)


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def run(
    arguments: Sequence[str],
    folder: Path,
    *,
    name: str,
    timeout: float,
    descriptors: Mapping[int, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run the machine to its end; the exit code of the command in it, HUNG, TIMED_OUT or DIED.

    timeout: seconds. descriptors: what the machine has under which number. Its console is the file `console`.
    """

    def set_up() -> None:  # in the child
        for number, source in (descriptors or {}).items():
            os.dup2(source, number)
        _prctl(_DEATH_SIGNAL, signal.SIGTERM)

    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stderr=None,
        env={**os.environ, **(environment or {})},
        close_fds=False,
        preexec_fn=set_up,
        start_new_session=True,
    )
    try:
        if code := _watch(process, folder / "alive", name, timeout):
            return code
    finally:
        _stop(process)
    with suppress(OSError, ValueError):
        return int((folder / "exit-code").read_text())
    said = (folder / "console").read_bytes().decode(errors="replace").splitlines()[-30:]
    print(f"{name}: the kernel ended before the command did", *said, sep="\n", file=sys.stderr)
    return DIED


def _watch(process: subprocess.Popen[bytes], alive: Path, name: str, timeout: float) -> int:
    """Wait for the machine's end; 0, or why we do not wait any longer."""
    begun = moved = time.monotonic()
    seen = 0.0
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
            return 0
        now = time.monotonic()
        with suppress(FileNotFoundError):
            if (sign := alive.stat().st_mtime) != seen:
                seen, moved = sign, now
        if now - begun >= timeout:
            print(f"{name}: not done after {timeout:g} s, stopped", file=sys.stderr)
            return TIMED_OUT
        if now - moved >= STILL:
            print(f"{name}: the kernel hung, no sign of life for {STILL:g} s, stopped", file=sys.stderr)
            return HUNG


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the machine: it ends in order when told to, and is killed when it does not listen."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_children() -> None:
    """Kill and reap what is left: as their subreaper we are the parent of all of them."""
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
