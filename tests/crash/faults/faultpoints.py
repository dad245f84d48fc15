"""Errors of the kernel and of tools where they can happen: under the functions of the host that the pools call.

A layer over `os`, `fcntl` and the system calls of host/libc.py, as the modules of tonnage.host and tonnage.storage.pools see
them, and over host/run.py. A Fault makes one of these functions fail, at one of its calls or from there on, before it
has done anything or after it has: as a disk does that reports an error late. Nothing else is touched, and only errors
that the function has are made.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import pkgutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tonnage.host
import tonnage.storage.pools
from tonnage.host import libc, run

ERRORS: Mapping[str, tuple[int, ...]] = {
    "os.open": (errno.EIO, errno.EMFILE, errno.ENOSPC, errno.EROFS),
    "os.write": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "os.pwrite": (errno.EIO, errno.ENOSPC),
    "os.fsync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "os.rename": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    "os.unlink": (errno.EIO, errno.EROFS),
    "os.rmdir": (errno.EIO, errno.EBUSY, errno.EROFS),
    "os.mkdir": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    "os.stat": (errno.EIO,),
    "os.lstat": (errno.EIO,),
    "os.statvfs": (errno.EIO,),
    "os.listdir": (errno.EIO,),
    "os.ftruncate": (errno.EIO, errno.ENOSPC),
    "os.posix_fallocate": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "os.chmod": (errno.EIO, errno.EROFS),
    "fcntl.ioctl": (errno.EIO, errno.EBUSY, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM),
    "fcntl.flock": (errno.ENOLCK,),
    "libc.syscall": (errno.EIO, errno.EBUSY, errno.ENOMEM, errno.ENOSPC, errno.EMFILE),
    "libc.statx": (errno.EIO,),
    "libc.umount2": (errno.EBUSY, errno.ENOMEM),
    "run.run": (errno.ETIMEDOUT, errno.EIO, errno.ENOSPC),
}
"""Which functions fail, and how. Of a program: it takes too long, it says EIO or ENOSPC and ends with code 1."""
_ELSEWHERE = tuple(f"tonnage.{name}" for name in ("host.lvm", "host.ndctl", "pools.lvm", "pools.pmem", "pools.static"))
LATE = frozenset({"os.fsync", "os.rename", "os.unlink", "os.mkdir", "os.rmdir", "run.run"})
"""Those that may have done their work when they fail."""


@dataclass(frozen=True)
class Fault:
    """What happens to a function. skip: calls that go well before. lasting: all after them fail, else one does. late:
    the function does its work and fails then."""

    function: str
    number: int
    skip: int = 0
    lasting: bool = False
    late: bool = False

    def __str__(self) -> str:
        when = "late " * self.late + ("from" if self.lasting else "at") + f" call {self.skip + 1}"
        return f"{self.function}: {errno.errorcode[self.number]} {when}"


class FaultPoints:
    """Without a fault it lets everything through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._calls = 0
        self.hit = 0
        """How often the present fault has happened."""
        self.counts: Counter[str] = Counter()
        """How often each function has failed in all."""

    @contextmanager
    def installed(self) -> Iterator[FaultPoints]:
        """Stand between the modules and the kernel while the body runs."""
        functions = {name: self._wrapped(name) for name in ERRORS}
        layers = {
            name: _layer(name, module, functions) for name, module in (("os", os), ("fcntl", fcntl), ("libc", libc))
        }
        changed: list[tuple[ModuleType, str, Any]] = []
        for module in _modules():
            for name, layer in layers.items():
                if getattr(module, name, None) is layer.module:
                    changed.append((module, name, layer.module))
                    setattr(module, name, layer)
            if getattr(module, "run", None) is run.run:
                changed.append((module, "run", run.run))
                setattr(module, "run", functions["run.run"])  # noqa: B010
        try:
            yield self
        finally:
            for module, name, original in changed:
                setattr(module, name, original)

    def _wrapped(self, name: str) -> Callable[..., Any]:
        module, _, function = name.partition(".")
        original = getattr({"os": os, "fcntl": fcntl, "libc": libc, "run": run}[module], function)

        def call(*arguments: Any, **keywords: Any) -> Any:
            fault = self._due(name)
            if fault is None:
                return original(*arguments, **keywords)
            if fault.late:
                original(*arguments, **keywords)
            raise _failure(fault, arguments)

        return call

    def _due(self, name: str) -> Fault | None:
        with self._lock:
            fault = self._fault
            if fault is None or fault.function != name:
                return None
            self._calls += 1
            at = self._calls - 1
            if at < fault.skip or (at > fault.skip and not fault.lasting):
                return None
            self.hit += 1
            self.counts[name] += 1
            return fault

    @contextmanager
    def failing(self, fault: Fault | None) -> Iterator[None]:
        """While the body runs, that happens."""
        with self._lock:
            self._fault, self._calls, self.hit = fault, 0, 0
        try:
            yield
        finally:
            with self._lock:
                self._fault = None


def _failure(fault: Fault, arguments: tuple[Any, ...]) -> Exception:
    if fault.function != "run.run":
        return OSError(fault.number, os.strerror(fault.number))
    command = arguments[0]
    if fault.number == errno.ETIMEDOUT:
        return run.CommandError(command, "not done after 60 s, killed")
    return run.CommandError(command, "exit code 1", code=1, stderr=f"{command[0]}: {os.strerror(fault.number)}")


def _layer(name: str, module: ModuleType, functions: Mapping[str, Callable[..., Any]]) -> _Layer:
    return _Layer(module, {key.partition(".")[2]: f for key, f in functions.items() if key.startswith(f"{name}.")})


class _Layer(ModuleType):
    """A module with some of its functions exchanged."""

    def __init__(self, module: ModuleType, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(module.__name__)
        self.module = module
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def _modules() -> Iterator[ModuleType]:
    """All modules of host and pools, loaded; but run.py itself, whose processes are real, and kinds that no machine runs
    here."""
    for package in (tonnage.host, tonnage.storage.pools):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name not in ("tonnage.host.run", "tonnage.host.libc") and not found.name.startswith(_ELSEWHERE):
                yield importlib.import_module(found.name)
