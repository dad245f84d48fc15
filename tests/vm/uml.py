#!/usr/bin/env python3
"""Run a command in user-mode Linux: a kernel with device-mapper and quotas where the machine's own has none.

    tests/vm/uml.py [--disk SIZE]... [--module NAME]... [--memory SIZE] [--timeout SECONDS] [--verbose] -- COMMAND [ARGUMENT]...

The guest's root is the machine's own file system (hostfs), so the same Python, packages and working tree are there and
what is written is written for real; /dev, /proc, /run, /sys and /etc/lvm are the guest's own, scratch disks are
/dev/ubda, /dev/ubdb ... Standard output and error are passed on, the exit code is the command's; TIMED_OUT when it was
stopped for time, DIED when the kernel ended before the command did, HUNG when nothing at all moves inside any more:
kernel 6.1 does so now and then when processes are killed, which is no fault of the command; run it again. No process is
left behind, whatever happens. With --check instead of a command: say why no guest can be had here.
Needs the Debian package user-mode-linux or what debian_uml.py gets, and no privilege. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vm import debian_uml, rig
else:
    import debian_uml  # beside this file, which is run as a program
    import rig

_NEWEST = debian_uml.find()
KERNEL = os.environ.get("UML_KERNEL") or (str(_NEWEST.program) if _NEWEST else "linux.uml")
MODULES = Path(os.environ.get("UML_MODULES") or (_NEWEST.modules.parent if _NEWEST else "/usr/lib/uml/modules"))
WANTED = ("loop", "dm-mod", "dm-thin-pool", "dm-snapshot", "dm-mirror", "dm-raid", "raid1", "quota_v2")


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


def _kernel(folder: Path, disks: Sequence[str], memory: str, *, verbose: bool) -> list[str]:
    arguments = [KERNEL, f"mem={memory}", "rootfstype=hostfs", "rootflags=/", "rw", f"init={folder / 'init'}"]
    arguments.append("seccomp=on")  # kernels before 6.16 ignore it
    arguments += [f"uml_dir={folder}", "umid=u", "quiet", "panic=-1"]
    arguments += ["con=null", f"con0=null,fd:{2 if verbose else 5}", "con1=null,fd:1", "con2=null,fd:4"]
    for index, size in enumerate(disks):
        disk = folder / f"disk{index}"
        subprocess.run(["truncate", "-s", size, disk], check=True)
        arguments.append(f"ubd{chr(ord('a') + index)}={disk}")
    return arguments


def boot(
    command: Sequence[str], *, disks: Sequence[str], memory: str, timeout: float, verbose: bool, module: Sequence[str]
) -> int:
    """Run command in a guest and return its exit code, HUNG, TIMED_OUT or DIED. timeout: seconds."""
    with rig.folder("uml") as folder:
        modules = next(iter(sorted(MODULES.glob("*/modules.dep")))).parent
        rig.order(folder, command, modules=str(modules), wanted=[*WANTED, *module], out="/dev/tty1", err="/dev/tty2")
        arguments = _kernel(folder, disks, memory, verbose=verbose)
        with (folder / "console").open("wb") as console:
            # Descriptors 4 and 5 are what the consoles are told to use.
            return rig.run(
                arguments,
                folder,
                name="uml",
                timeout=timeout,
                descriptors={5: console.fileno(), 4: 2},
                environment={"TMPDIR": _memory_folder()},
            )


if __name__ == "__main__":
    more = {"module": "a kernel module to load with the usual ones; repeat"}
    sys.exit(rig.main(sys.argv[1:], boot, missing, name="uml", disk="--disk", memory="768M", more=more))
