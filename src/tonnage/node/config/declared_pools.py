"""Declared pools: devices that a node's configuration names for its pools, made into pools when the node starts.

The commands are those of a person who makes a pool. Nothing runs without the option that allows it, and a device that
holds anything is rejected. After a kill at any point, the next start recognizes what exists and completes it.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from tonnage.base.errors import InvalidError, PreconditionError, TonnageError
from tonnage.host import mount
from tonnage.host.descriptor import opened
from tonnage.storage.pools import device_setup, kinds
from tonnage.storage.pools.directory.directory import NOTE
from tonnage.storage.pools.kind import PoolConfig
from tonnage.storage.pools.setup_plan import PoolSetupPlan, Step

log = logging.getLogger(__name__)
_DEVICES = "/dev"


class DeclaredPoolEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the file. fstype, profile: as of device_setup.plan_init()."""

    pool: str
    devices: list[str]
    fstype: str = ""
    profile: str = "single"


@dataclass(frozen=True)
class DeclaredPool:
    """A pool of the configuration and its devices. fstype, profile: as of device_setup.plan_init()."""

    pool: PoolConfig
    devices: tuple[Path, ...]
    fstype: str = ""
    profile: str = "single"

    def __str__(self) -> str:
        return f"pool {self.pool.name} on {' '.join(map(str, self.devices))}"

    def plan(self) -> PoolSetupPlan:
        """Plan what is missing; no steps when all exists. Blocking. Raises: as device_setup.plan_init()."""
        return device_setup.plan_init(self.pool, self.devices, fstype=self.fstype, data=self.profile)


def read(entries: Sequence[DeclaredPoolEntry], pools: Sequence[PoolConfig]) -> tuple[DeclaredPool, ...]:
    """Return the declared pools among pools.

    Raises: InvalidError for an unknown pool, one that is declared twice or not made of devices, no or relative devices,
    a device of two pools.
    """
    by_name = {pool.name: pool for pool in pools}
    found: dict[str, DeclaredPool] = {}
    owners: dict[str, str] = {}
    for number, entry in enumerate(entries):
        place = f"declare[{number}]"
        if entry.pool not in by_name or entry.pool in found:
            why = "is declared twice" if entry.pool in found else f"is unknown, want one of {', '.join(by_name)}"
            raise InvalidError(f"{place}.pool: {entry.pool[:80]!r} {why}")
        if (kind := by_name[entry.pool].kind).setup is None:
            known = ", ".join(one.name for one in kinds.known() if one.setup is not None)
            raise InvalidError(f"{place}.pool: {entry.pool} is of kind {kind}, want one of {known}")
        if not entry.devices:
            raise InvalidError(f"{place}.devices: name at least one device, as /dev/disk/by-id/...")
        for device in entry.devices:
            if not device.startswith("/dev/") or "\0" in device or ".." in device.split("/"):
                raise InvalidError(f"{place}.devices: {device[:120]!r}: want a path below /dev, as /dev/disk/by-id/...")
            if device in owners:
                raise InvalidError(f"{place}.devices: {device} is declared for pool {owners[device]} already")
            owners[device] = entry.pool
        found[entry.pool] = DeclaredPool(
            by_name[entry.pool], tuple(map(Path, entry.devices)), entry.fstype, entry.profile
        )
    return tuple(found.values())


def require_made(declared: Sequence[DeclaredPool]) -> None:
    """Check that declared pools exist, where nothing may be made. Blocking.

    It writes at most the note in an empty mount point whose device is missing. What plan() raises is logged. Raises
    PreconditionError with the commands for the first one that could be made.
    """
    for each in declared:
        with _logged(each):
            if steps := each.plan().steps:
                commands = "; ".join(map(str, steps))
                raise _NotMadeError(
                    f"{each}: declared, but not made: {commands}; set makePools: true in the configuration"
                    " (or --make-pools) to have the node run this, or run it yourself"
                )


def make(declared: Sequence[DeclaredPool], done: Callable[[DeclaredPool, Step], None]) -> list[str]:
    """Run what is missing of each declared pool; done: called after each command. Blocking. Idempotent.

    Returns errors, one for each pool that could not be made; they are logged too, and do not stop the others.
    """
    failures: list[str] = []
    for each in declared:
        with _logged(each, failures), _locked():
            each.plan().run(partial(done, each))
    return failures


class _NotMadeError(PreconditionError):
    """A declared pool that nothing may make; it stops the start."""


@contextmanager
def _logged(each: DeclaredPool, failures: list[str] | None = None) -> Iterator[None]:
    """Log an error of one declared pool, and keep its folder from being taken for the disk."""
    try:
        yield
    except _NotMadeError:
        raise
    except TonnageError as failure:
        log.error("declared pool is not made pool=%s error=%s", each.pool.name, failure)
        _mark_unmounted(each.pool)
        if failures is not None:
            failures.append(f"{each}: {failure}")


def _mark_unmounted(pool: PoolConfig) -> None:
    """Leave the note in an empty mount point: otherwise its pool would be made on the disk below."""
    where = pool.where
    if where is None or mount.is_mount(where):
        return
    with suppress(OSError):
        os.makedirs(where, mode=0o700, exist_ok=True)
        if not os.listdir(where):
            (where / NOTE).touch()


@contextmanager
def _locked() -> Iterator[None]:
    """Hold a lock of the machine's devices, so that two agents of a node never make one pool at once.

    It is a lock of the directory itself: agents in containers share the host's, and nothing is left after a kill. Locks
    of devices would count as their use.
    """
    with opened(_DEVICES, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
