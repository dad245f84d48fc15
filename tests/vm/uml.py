#!/usr/bin/env python3
"""Run a command in user-mode Linux: a kernel with device-mapper and quotas where the machine's own has none.

    tests/vm/uml.py [--disk SIZE]... [--memory SIZE] [--timeout SECONDS] [--verbose] -- COMMAND [ARGUMENT]...

The guest's root is the machine's own file system (hostfs), so the same Python, packages and working tree are there and
what is written is written for real; /dev, /proc, /run, /sys and /etc/lvm are the guest's own, scratch disks are
/dev/ubda, /dev/ubdb ... Standard output and error are passed on, the exit code is the command's; TIMED_OUT when it was
stopped for time, DIED when the kernel ended before the command did, HUNG when nothing at all moves inside any more:
kernel 6.1 does so now and then when processes are killed, which is no fault of the command; run it again. No process is
left behind, whatever happens.
Needs the Debian package user-mode-linux and no privilege. Standard library only.
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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

HUNG, TIMED_OUT, DIED = 123, 124, 125
STILL = 60.0
"""Seconds without a sign of life (guest_init.py gives one every other second) after which a kernel counts as hung."""
KERNEL = os.environ.get("UML_KERNEL", "linux.uml")
MODULES = Path(os.environ.get("UML_MODULES", "/usr/lib/uml/modules"))
WANTED = ("loop", "dm-mod", "dm-thin-pool", "dm-snapshot", "dm-mirror", "dm-raid", "raid1", "quota_v2")
_MASKED = ("/dev/", "/run/", "/proc/", "/sys/", "/etc/lvm/")  # what the guest mounts over
_SUBREAPER, _DEATH_SIGNAL = 36, 1  # prctl(2)
_GRACE = 5.0  # seconds for the kernel to end in order


def missing() -> str:
    """Why no guest can be had here, "" when it can."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "needs Linux on x86_64 (Debian's user-mode-linux)"
    if shutil.which(KERNEL) is None:
        return "needs user-mode Linux (Debian: apt-get install user-mode-linux)"
    if not any(MODULES.glob("*/modules.dep")):
        return f"needs the modules of user-mode Linux under {MODULES}"
    return "" if _memory_folder() else "needs a file system without noexec for the guest's memory (/dev/shm)"


def _memory_folder() -> str:
    """Where the guest's memory may be a file that is mapped executable."""
    for folder in ("/dev/shm", tempfile.gettempdir()):
        with suppress(OSError):
            if not os.statvfs(folder).f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK):
                return folder
    return ""


def _run_folder() -> Path:
    """A folder that the guest sees under the same name."""
    base = tempfile.gettempdir()
    if f"{os.path.realpath(base)}/".startswith(_MASKED):
        base = "/var/tmp"
    return Path(tempfile.mkdtemp(prefix="uml-", dir=base))


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _prepare(folder: Path, command: Sequence[str]) -> None:
    """Write down for guest_init.py what to do."""
    order = {"command": list(command), "cwd": os.getcwd(), "env": dict(os.environ), "folder": str(folder)}
    order |= {"modules": str(next(iter(sorted(MODULES.glob("*/modules.dep")))).parent), "wanted": WANTED}
    (folder / "order.json").write_text(json.dumps(order))
    script = Path(__file__).resolve().with_name("guest_init.py")
    words = [os.path.abspath(sys.executable), "-I", "-B", str(script), str(folder / "order.json")]
    (folder / "init").write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
    (folder / "init").chmod(0o755)


def _kernel(folder: Path, disks: Sequence[str], memory: str, *, verbose: bool) -> list[str]:
    arguments = [KERNEL, f"mem={memory}", "rootfstype=hostfs", "rootflags=/", "rw", f"init={folder / 'init'}"]
    arguments += [f"uml_dir={folder}", "umid=u", "quiet", "panic=-1"]
    arguments += ["con=null", f"con0=null,fd:{2 if verbose else 5}", "con1=null,fd:1", "con2=null,fd:4"]
    for index, size in enumerate(disks):
        disk = folder / f"disk{index}"
        subprocess.run(["truncate", "-s", size, disk], check=True)
        arguments.append(f"ubd{chr(ord('a') + index)}={disk}")
    return arguments


def boot(command: Sequence[str], *, disks: Sequence[str], memory: str, timeout: float, verbose: bool) -> int:
    """Run command in a guest and return its exit code, HUNG, TIMED_OUT or DIED. timeout: seconds."""
    folder = _run_folder()
    try:
        _prepare(folder, command)
        arguments = _kernel(folder, disks, memory, verbose=verbose)
        with (folder / "console").open("wb") as console:
            return _run(folder, arguments, console.fileno(), timeout)
    finally:
        _end_children()
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, arguments: Sequence[str], console: int, timeout: float) -> int:
    def set_up() -> None:  # in the child: descriptors 4 and 5 are what the consoles are told to use
        os.dup2(2, 4)
        os.dup2(console, 5)
        _prctl(_DEATH_SIGNAL, signal.SIGTERM)

    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stderr=None,
        env={**os.environ, "TMPDIR": _memory_folder()},
        close_fds=False,
        preexec_fn=set_up,
        start_new_session=True,
    )
    try:
        if code := _watch(process, folder / "alive", timeout):
            return code
    finally:
        _stop(process)
    with suppress(OSError, ValueError):
        return int((folder / "exit-code").read_text())
    said = (folder / "console").read_bytes().decode(errors="replace").splitlines()[-30:]
    print("uml: the kernel ended before the command did", *said, sep="\n", file=sys.stderr)
    return DIED


def _watch(process: subprocess.Popen[bytes], alive: Path, timeout: float) -> int:
    """Wait for the kernel's end; 0, or why we do not wait any longer."""
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
            print(f"uml: not done after {timeout:g} s, stopped", file=sys.stderr)
            return TIMED_OUT
        if now - moved >= STILL:
            print(f"uml: the kernel hung, no sign of life for {STILL:g} s, stopped", file=sys.stderr)
            return HUNG


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the kernel: it ends its processes when told to, and is killed when it does not listen."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_children() -> None:
    """Kill and reap what the kernel left: as their subreaper we are the parent of all of them."""
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


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="run a command in user-mode Linux")
    parser.add_argument("--disk", action="append", default=[], metavar="SIZE", help="a scratch disk, as 2G; repeat")
    parser.add_argument("--memory", default="768M", metavar="SIZE")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--verbose", action="store_true", help="show the kernel's console on standard error")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    if reason := missing():
        print(f"uml: {reason}", file=sys.stderr)
        return DIED
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _terminated)
    _prctl(_SUBREAPER, 1)
    _prctl(_DEATH_SIGNAL, signal.SIGTERM)
    return boot(given.command, disks=given.disk, memory=given.memory, timeout=given.timeout, verbose=given.verbose)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
