"""The first process of a guest that uml.py or qemu.py boots: make it a machine, run the command, write its exit code,
power off.

Standard library only, no program of the machine but the command itself. Argument: the order that rig.py wrote.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import termios
import threading
import time
import traceback
import tty
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_FINIT_MODULE, _REBOOT_POWER_OFF = 313, 0x4321FEDC
_LVM_CONF = """\
devices { types=["ubd",16] use_devicesfile=0 obtain_device_list_from_udev=0 external_device_info_source="none" }
"""


def _mount(fstype: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    if _LIBC.mount(fstype.encode(), target.encode(), fstype.encode(), 0, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _mounts() -> None:
    for fstype, target in (("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run")):
        _mount(fstype, target)
    for fstype, target in (("devpts", "/dev/pts"), ("tmpfs", "/dev/shm")):
        _mount(fstype, target)
    for folder in ("/run/lock", "/run/tmp"):
        os.mkdir(folder)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        with suppress(FileExistsError):
            os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    if os.path.isdir("/etc/lvm"):  # lvm writes its archives there, and this machine's disks are of a kind of their own
        profiles = "/run/lvm-profile"
        with suppress(FileNotFoundError):
            shutil.copytree("/etc/lvm/profile", profiles)
        _mount("tmpfs", "/etc/lvm")
        Path("/etc/lvm/lvm.conf").write_text(_LVM_CONF)
        with suppress(FileNotFoundError):
            shutil.copytree(profiles, "/etc/lvm/profile")


def _load(folder: Path, wanted: Sequence[str]) -> None:
    """Load modules and what they need, by modules.dep; what is built in or not there is left out."""
    needs: dict[str, list[str]] = {}
    paths: dict[str, Path] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[_module(path)] = [_module(other) for other in rest.split()]
        paths[_module(path)] = folder / path
    loaded: set[str] = set()

    def load(name: str) -> None:
        if name in loaded or name not in paths:
            return
        loaded.add(name)
        for other in needs[name]:
            load(other)
        fd = os.open(paths[name], os.O_RDONLY | os.O_CLOEXEC)
        if _LIBC.syscall(_FINIT_MODULE, fd, b"", 0) < 0:
            print(f"guest: module {name}: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        os.close(fd)

    for name in wanted:
        load(name.replace("-", "_"))


def _module(path: str) -> str:
    return os.path.basename(path).partition(".ko")[0].replace("-", "_")


def _console(path: str) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CREAT | os.O_APPEND, 0o600)
    if os.isatty(fd):
        tty.setraw(fd)
    return fd


def _live(sign: str) -> None:
    """Show that things move. A time that is set is passed on at once; `now` would stay in the guest's cache."""
    with open(sign, "w"):
        pass
    while True:
        os.utime(sign, (time.time(), time.time()))
        time.sleep(2)


def _run(order: Mapping[str, Any]) -> int:
    out, err = _console(order["out"]), _console(order["err"])
    env = {**order["env"], "TMPDIR": "/run/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        process = subprocess.Popen(
            order["command"], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=order["cwd"], env=env
        )
        while True:  # orphans come to us, as to any first process
            pid, status = os.wait()
            if pid == process.pid:
                return os.waitstatus_to_exitcode(status)
    except OSError as failure:
        os.write(err, f"guest: {order['command'][0]}: {failure.strerror}\n".encode())
        return 127
    finally:
        for fd in filter(os.isatty, (out, err)):
            termios.tcdrain(fd)


def main() -> None:
    """See the module."""
    order = json.loads(Path(sys.argv[1]).read_text())
    try:
        threading.Thread(target=_live, args=(f"{order['folder']}/alive",), daemon=True).start()
        _mounts()
        _load(Path(order["modules"]), order["wanted"])
        code = _run(order)
        code = code if code >= 0 else 128 - code
        (Path(order["folder"]) / "exit-code").write_text(str(code))
    except BaseException:
        traceback.print_exc()
    finally:
        os.sync()
        _LIBC.reboot(_REBOOT_POWER_OFF)


if __name__ == "__main__":
    main()
