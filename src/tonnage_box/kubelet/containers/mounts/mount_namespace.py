"""Mount namespace of a container, visited by a thread of the kubelet.

The thread has the namespace's mounts and the machine's root: a path that starts with / is never the container's, so
what else runs in the thread (an import, a finalizer) reads no file of it. It reaches the container's files only by the
descriptor of its root. Blocking; needs Linux 5.8 (setns(2) of a pidfd).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tonnage.base.errors import HostError
from tonnage.host import libc
from tonnage.host.descriptor import closing, opened

_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_FOLDER = os.O_PATH | os.O_DIRECTORY


def visit(pidfd: int, root: str, work: Callable[[int], None]) -> None:
    """Do work in the mount namespace of a process, with a descriptor of its root.

    root: the folder on this machine that is the root there. Raises: HostError (another root was found), OSError, what
    work raises.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            _work(pidfd, root, work)
        except BaseException as failure:
            failures.append(failure)

    # A thread of its own: it cannot come back, and the threads of a pool are used again.
    thread = threading.Thread(target=run, name="mounts")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _work(pidfd: int, root: str, work: Callable[[int], None]) -> None:
    with opened("/", _FOLDER) as machine, opened(root, _FOLDER) as expected, closing(_enter(pidfd, machine)) as found:
        if not os.path.samestat(os.fstat(expected), os.fstat(found)):
            raise HostError(f"{root}: it is not the root of the container that was started; start it again")
        work(found)


def _enter(pidfd: int, machine: int) -> int:
    """Join; a descriptor of the root there. machine: the root of this machine, which stays this thread's."""
    libc.unshare(_CLONE_FS)
    libc.setns(pidfd, _CLONE_NEWNS)
    try:
        return os.open("/", _FOLDER | os.O_CLOEXEC)
    finally:
        os.fchdir(machine)
        os.chroot(".")
