"""The machine's env, setpriv and setsid inside an image, which may have none: bound read-only below /dev. Blocking.

They run by the machine's dynamic linker with the machine's libraries, so that nothing of the image is loaded while they
still are root.
"""

from __future__ import annotations

import os
import shutil
import struct
from functools import cache

from tonnage.box.kubelet.containers.rootfs import SETPRIV, SETSID, TOOLS, Bind, Tools
from tonnage.errors import HostError
from tonnage.host.run import run

_ENV = "/usr/bin/env"
_PT_INTERP = 3


@cache
def tools() -> Tools:
    """env, setpriv and setsid, and the binds that they need in a container. Raises HostError."""
    files: dict[str, str] = {}
    commands = [_command(program, files) for program in (_ENV, SETPRIV, SETSID)]
    binds = tuple(Bind(source, target, read_only=True) for target, source in files.items())
    env, setpriv, setsid = map(tuple, commands)
    return Tools(env, setpriv, setsid, binds)


def _command(program: str, files: dict[str, str]) -> list[str]:
    """How to run a program in the image; its files are added by their targets."""
    real = os.path.realpath(shutil.which(program) or program)
    target = f"{TOOLS}/{os.path.basename(program)}"
    files[target] = real
    linker = interpreter(real)
    if not linker:
        return [target]
    for name, path in _libraries(linker, real).items():
        files[f"{TOOLS}/{name}"] = path
    files[f"{TOOLS}/ld.so"] = os.path.realpath(linker)
    return [f"{TOOLS}/ld.so", "--library-path", TOOLS, target]


def interpreter(program: str) -> str:
    """The dynamic linker of an ELF file of 64 bits; "" for a static one. Raises HostError."""
    try:
        with open(program, "rb") as file:
            header = file.read(64)
            if header[:5] != b"\x7fELF\x02":
                raise HostError(f"{program} is not an ELF program of 64 bits: images cannot be run here")
            order = "<" if header[5] == 1 else ">"
            (offset,) = struct.unpack_from(f"{order}Q", header, 32)
            size, count = struct.unpack_from(f"{order}HH", header, 54)
            file.seek(offset)
            table = file.read(size * count)
            for at in range(0, len(table), size):
                kind, _, where, _, _, length = struct.unpack_from(f"{order}IIQQQQ", table, at)
                if kind == _PT_INTERP:
                    file.seek(where)
                    return os.fsdecode(file.read(length).rstrip(b"\0"))
    except (OSError, struct.error) as failure:
        raise HostError(f"{program} cannot be read: {failure}") from failure
    return ""


def _libraries(linker: str, program: str) -> dict[str, str]:
    """Libraries of a program by their names, as its linker lists them: `name => path (address)`."""
    found = {}
    for line in run([linker, "--list", program]).splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        path = rest.partition(" (")[0]
        if arrow and path.startswith("/"):
            found[os.path.basename(name)] = os.path.realpath(path)
    return found
