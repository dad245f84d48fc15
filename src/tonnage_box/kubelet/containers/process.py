"""Process of one container: a `bwrap` that outlives the kubelet, watched by its pidfd, found after a restart.

bwrap writes two values into a file of the container's folder: the pid of the first process in its namespace, and its
exit code. So a later kubelet, which is not the parent, learns how a container ended. A pid identifies this container
only together with the process's start time, because pids are reused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from contextlib import suppress

import msgspec

from tonnage.base.aio.clock import Clock
from tonnage_box.kubelet.containers import log_writer, termination
from tonnage_box.kubelet.containers.log_writer import LogPump
from tonnage_box.kubelet.containers.runtime import Ended, OnExit
from tonnage_box.kubelet.containers.start import keeper

log = logging.getLogger(__name__)
STATE = "state.json"
STATUS = "status"
ROOT = "rootfs"
_SOON = 0.02


class ProcessState(msgspec.Struct, frozen=True):
    """state.json. started: seconds since the epoch; ticks: start time of the process, in the kernel's ticks.

    image: the digest that it runs from, "" for the machine's /usr; signal: asks it to end. log_tells: the end of its
    log is its message when it fails without one.
    """

    id: str
    pid: int
    ticks: int
    boot: str
    started: float
    log: str
    image: str = ""
    signal: int = signal.SIGTERM
    log_tells: bool = False


class _Status(msgspec.Struct, rename="kebab"):
    child_pid: int | None = None
    exit_code: int | None = None


_statuses = msgspec.json.Decoder(_Status)


def read_status(folder: str) -> tuple[int | None, int | None]:
    """Pid of the namespace's first process, and exit code, as far as bwrap has written them."""
    child = code = None
    try:
        with open(f"{folder}/{STATUS}", "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None, None
    for line in lines:
        with suppress(msgspec.MsgspecError):
            status = _statuses.decode(line)
            child = status.child_pid if status.child_pid is not None else child
            code = status.exit_code if status.exit_code is not None else code
    return child, code


def first_process(folder: str, parent: int) -> int | None:
    """Pid of the namespace's first process, if it surely is ours: bwrap is its parent and not yet gone."""
    first, _ = read_status(folder)
    fields = stat_fields(first) if first is not None else None
    return first if fields is not None and fields[0] == parent else None


def stat_fields(pid: int) -> tuple[int, int] | None:
    """Parent and start time (ticks) of a process; None when there is none (a zombie counts as none)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))


def runs_in(pid: int, root: str) -> bool:
    """Whether a process has the command line of a bwrap that we started with that root."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return os.fsencode(root) in file.read().split(b"\0")
    return False


def running_in(root: str) -> list[int]:
    """All processes with such a command line. Reads the whole table of processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and runs_in(int(name), root)]


def boot_id() -> str:
    """Changes with each boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _reap(child: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(child, 0)


class ContainerProcess:
    """Implements runtime.Process. Made by start (with its Popen) or by adoption (without)."""

    def __init__(
        self,
        state: ProcessState,
        folder: str,
        clock: Clock,
        on_exit: OnExit,
        *,
        child: subprocess.Popen[bytes] | None = None,
        pump: LogPump | None = None,
        stdin: int = -1,
    ) -> None:
        """stdin: where the container's input is written, if it has one; the process owns it."""
        self.id = state.id
        self.started = state.started
        self.image_id = state.image
        self._signal = state.signal
        self._log = state.log if state.log_tells else ""
        self.ended: Ended | None = None
        self._pid = state.pid
        self.folder = folder
        self._clock = clock
        self._on_exit = on_exit
        self._child = child
        self.pump = pump
        self.stdin = stdin
        self.keeping = 0
        """pid of the keeper of its output, if that is our child."""
        self._pidfd = -1
        self._kill_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        self._code: int | None = None

    def watch(self, pidfd: int) -> None:
        """Ask the kernel for a notification of its end."""
        self._pidfd = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._gone)
        if self.pump is not None:
            self.pump.start()

    def _gone(self) -> None:
        """bwrap has ended; what ran in its namespace may do so a moment later, and holds the volumes until then."""
        self._code = self._child.wait() if self._child is not None else None
        self.unwatch()
        if not self.kill_rest():
            self._finish()

    def kill_rest(self) -> bool:
        """Kill what still runs in the namespace of a bwrap that has ended, and wait for its end; whether there was any.

        The container has ended when that has: until then it holds the volumes. A kubelet may be killed before it did
        this, so the next one does it also where bwrap has written an exit code: that is only the command's.
        """
        if (first := self._lingering()) is None:
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(first, signal.SIGKILL)
        self._pidfd = first
        asyncio.get_running_loop().add_reader(first, self._finish)
        return True

    def _lingering(self) -> int | None:
        """A pidfd of the namespace's first process if it still is there; it has the command line of our bwrap.

        A bwrap that was killed before it wrote that process' pid leaves it waiting for ever.
        """
        root = f"{self.folder}/{ROOT}"
        first, _ = read_status(self.folder)
        for pid in running_in(root) if first is None else [first]:
            with suppress(OSError):
                pidfd = os.pidfd_open(pid)
                if runs_in(pid, root):  # looked at after the pidfd was made: the pid cannot be another's
                    return pidfd
                os.close(pidfd)
        return None

    def _finish(self) -> None:
        self.unwatch()
        self.close_stdin()
        self.close_output()
        self.ended = self.read_end(self._code)
        self._on_exit()

    def close_output(self) -> None:
        """The container has ended: read the rest of its output, and let its keeper end. Idempotent."""
        if self.pump is not None:
            self.pump.finish()
        keeper.end(self.folder)
        if self.keeping:
            asyncio.get_running_loop().run_in_executor(None, _reap, self.keeping)
            self.keeping = 0

    def read_end(self, code: int | None) -> Ended:
        """How it ended: from bwrap, else from its own exit code."""
        _, written = read_status(self.folder)
        at = self._clock.time()
        with suppress(OSError):
            at = max(self.started, os.stat(f"{self.folder}/{STATUS}").st_mtime) if written is not None else at
        if written is not None:
            return Ended(written, at, message=self._message(written))
        if code is not None and code >= 0:
            return Ended(code, at, "StartError", "the container's root could not be made: see its log")
        return Ended(137, at, message=self._message(137))

    def _message(self, code: int) -> str:
        message = termination.read(self.folder)
        return log_writer.tail(self._log) if self._log and code and not message else message

    def stop(self, grace: float) -> None:
        """See runtime.Process."""
        if self.ended is not None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        if self._kill_at is not None and self._kill_at <= deadline:
            return
        self._kill_at = deadline
        if grace > 0 and not self._asked:
            self._ask()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(deadline, self._kill)

    def _ask(self) -> None:
        """The stop signal to the command, which is the first child of the namespace's first process."""
        if self.ended is not None:
            return
        if (command := self._command()) is None:  # bwrap is still at work
            asyncio.get_running_loop().call_later(_SOON, self._ask)
            return
        self._asked = True
        with suppress(ProcessLookupError):
            os.kill(command, self._signal)

    def _kill(self) -> None:
        """SIGKILL to the first process of the namespace: the kernel ends all others with it."""
        if self.ended is not None:
            return
        first = self._first()
        with suppress(ProcessLookupError):
            if first is not None:
                os.kill(first, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _first(self) -> int | None:
        return first_process(self.folder, self._pid)

    def _command(self) -> int | None:
        first = self._first()
        if first is None:
            return None
        try:
            with open(f"/proc/{first}/task/{first}/children", "rb") as file:
                children = file.read().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(children[0]) if children else None

    def anchor(self) -> int | None:
        """A pidfd of its namespaces' first process, by which others join them; None while it does not run.

        The caller closes it. The command's process exists only after the root was made.
        """
        first, _ = read_status(self.folder)
        if self.ended is not None or first is None:
            return None
        try:
            pidfd = os.pidfd_open(first)
        except OSError:
            return None
        if self._command() is None:  # looked at after the pidfd was made: from here on the pid cannot be another's
            os.close(pidfd)
            return None
        return pidfd

    def close_stdin(self) -> None:
        """End the container's input; hangs up a terminal. Idempotent."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def unwatch(self) -> None:
        """Stop watching; the process runs on. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def release(self) -> None:
        """unwatch(), stop reading its output, and end its input."""
        self.unwatch()
        self.close_stdin()
        if self.pump is not None:
            self.pump.close()
        if self._child is not None:
            self._child.returncode = 0  # it runs on without a waiting parent: prevents Popen's warning
