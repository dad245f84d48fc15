"""The thin pool of an LVM pool: created if missing, checked, and monitored for fullness. Blocking."""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path

import msgspec

from tonnage.base.errors import HostError, TonnageError, UnavailableError
from tonnage.host import dm, lvm
from tonnage.host.lvm import VolumeGroup
from tonnage.storage.pools.lvm.accounting import Account

log = logging.getLogger(__name__)
FULL_DATA, FULL_METADATA = 0.95, 0.9
"""Fullness from which no more volumes are created in it."""


class LvmLimits(msgspec.Struct, frozen=True):
    """Limits of an LVM pool.

    size: bytes, 0 for the group's. thin: name of its thin pool, "" for none. thin_size: bytes of the thin pool where it
    must be made, 0 when it must exist. ratio: overcommit factor for its size.
    """

    size: int = 0
    thin: str = ""
    thin_size: int = 0
    ratio: float = 1.0


class ThinWatch:
    """Monitors the thin pool that bounds name; does nothing where they name none."""

    def __init__(self, account: Account, bounds: LvmLimits) -> None:
        self._account = account
        self._bounds = bounds
        self._path = f"{account.name}/{bounds.thin}"
        self._warned = False

    def open(self, group: VolumeGroup) -> None:
        """Create the thin pool if it is missing, and configure it. Raises: UnavailableError, HostError."""
        thin = self._bounds.thin
        if not thin:
            return
        if thin not in group.volumes:
            group = self._make()
        found = group.volumes[thin]
        if found.layout != "thin,pool":
            raise UnavailableError(f"{self._path} is {found.layout or 'something else'}, not a thin pool")
        if not found.zeroes:
            raise UnavailableError(f"thin pool {self._path} would show old data: lvm lvchange -Zy {self._path}")
        if found.when_full != "error":  # or writers to a full pool would hang
            lvm.lvm("lvchange", "--errorwhenfull", "y", self._path)
            self._account.distrust()
        if not found.active:
            self._activate()
        self._settle()

    def _activate(self) -> None:
        command = ("lvchange", "--activate", "y", self._path)
        try:
            lvm.lvm(*command)
        except HostError as failure:
            if not catch_up(self._account.name, self._bounds.thin, str(failure)):
                raise
            lvm.lvm(*command)
            self._account.distrust()

    def make(self, *command: str) -> None:
        """Run an LVM command that creates something in the thin pool. Raises: what lvm() does.

        It runs once more when leftovers of a killed command were in the way.
        """
        try:
            lvm.lvm(*command)
        except TonnageError:
            if not self._settle():
                raise
            lvm.lvm(*command)

    def _settle(self) -> bool:
        """Whether something was in the way, and is removed."""
        try:
            return settle(self._account.name, self._bounds.thin)
        except TonnageError as failure:
            log.warning("cannot check thin pool pool=%s error=%s", self._path, failure)
            return False

    def _make(self) -> VolumeGroup:
        if not self._bounds.thin_size:
            raise UnavailableError(
                f"volume group {self._account.name} has no thin pool {self._bounds.thin}: make it (lvcreate --type"
                " thin-pool), or say thinsize=SIZE to have it made"
            )
        size = ["--size", f"{self._bounds.thin_size}b"]
        lvm.lvm(
            "lvcreate", "--yes", "--type", "thin-pool", "-Zy", *size, "--name", self._bounds.thin, self._account.name
        )
        return self._account.read()

    def state(self) -> dm.ThinPool:
        """Fullness of the thin pool, from the kernel; as last read where it is not active. Raises: HostError."""
        name = lvm.mapper_name(self._account.name, self._bounds.thin)
        found = dm.thin_pool(f"{name}-tpool") or dm.thin_pool(name)
        if found is None:
            pool = self._account.pool
            found = dm.ThinPool(pool.data / 100, pool.metadata / 100, writable=True)
        return found

    def is_full(self) -> bool:
        """Whether it is too full to create anything in it."""
        found = self.state()
        full = found.data >= FULL_DATA or found.metadata >= FULL_METADATA or not found.writable
        if full and not self._warned:
            log.warning(
                "thin pool is full, nothing more is made in it pool=%s data=%.2f metadata=%.2f",
                self._path, found.data, found.metadata,
            )  # fmt: skip
        self._warned = full
        return full

    def empties(self, most: int) -> bool:
        """Whether it is not full any more once its volumes have at most so many bytes. Raises: HostError."""
        found = self.state()
        return found.writable and found.metadata < FULL_METADATA and most < FULL_DATA * self._account.pool.size

    def fault(self) -> str:
        """The problem of the thin pool for its volumes, "" for none. Raises: UnavailableError, HostError."""
        found = self.state()
        if not found.writable:
            return f"its thin pool {self._path} takes no more writes: see the kernel's log, then lvm lvconvert --repair"
        if found.data >= FULL_DATA or found.metadata >= FULL_METADATA:
            return (
                f"its thin pool {self._path} is nearly full ({found.data:.0%} of its data, {found.metadata:.0%} of its"
                " metadata are used), writes will fail: delete volumes, or lvm lvextend it"
            )
        return ""


_RUN = "/run/tonnage"


def settle(group: str, pool: str) -> bool:
    """Make an active thin pool agree with LVM's metadata; return whether it had to. Idempotent. Raises: HostError.

    Only the device that LVM would assign to the next volume is removed, and only if no volume has its number: LVM
    counts upwards from the highest.
    """
    kernel = f"{lvm.mapper_name(group, pool)}-tpool"
    with lvm.alone(group):
        state = dm.thin_pool(kernel)
        if state is None or not state.writable:
            return False
        known = lvm.thin_numbers(group, pool)
        ahead = state.transaction - known.transaction
        if ahead not in (0, 1):  # behind: LVM itself goes on with what it had begun
            return False
        if ahead:
            log.warning("thin pool is ahead of LVM, set back pool=%s/%s transaction=%d", group, pool, known.transaction)
            dm.set_transaction(kernel, state.transaction, known.transaction)
        stale = max(known.devices, default=0) + 1
        if is_stale := dm.delete_thin(kernel, stale):
            log.warning("thin device that no volume has was removed pool=%s/%s device=%d", group, pool, stale)
        return bool(ahead) or is_stale


_AHEAD = re.compile(r"transaction_id is (\d+), while expected (\d+)")


def catch_up(group: str, pool: str, said: str) -> bool:
    """Update LVM's metadata to a thin pool that is one transaction ahead, which LVM rejects to activate.

    settle() does the rest. said: LVM's error message. Returns whether that was the cause. vgcfgrestore(8) is the only
    way: the kernel takes messages only from an active pool. Raises: HostError.
    """
    found = _AHEAD.search(said)
    if found is None or int(found[1]) != int(found[2]) + 1:
        return False
    log.warning("thin pool is ahead of LVM, which follows pool=%s/%s transaction=%s", group, pool, found[1])
    with tempfile.TemporaryDirectory(prefix="lvm-", dir=_RUN) as folder, lvm.alone(group):
        path = Path(folder, "metadata")
        lvm.lvm_alone("vgcfgbackup", "--file", str(path), group)
        path.write_text(following(path.read_text(), pool, before=int(found[2])))
        lvm.lvm_alone("vgcfgrestore", "--yes", "--force", "--file", str(path), group)
    return True


def following(metadata: str, pool: str, *, before: int) -> str:
    """LVM's metadata of a group, as vgcfgbackup writes them, with the thin pool's transaction increased.

    before: the transaction that it must have. Raises: HostError unless the metadata are exactly as expected.
    """
    volume = re.search(rf"^\t\t{re.escape(pool)} {{$.*?^\t\t}}$", metadata, re.MULTILINE | re.DOTALL)
    text = volume[0] if volume else ""
    changed, count = re.subn(rf"(?<=\ttransaction_id = ){before}$", str(before + 1), text, flags=re.MULTILINE)
    if volume is None or count != 1 or 'type = "thin-pool"' not in text or "message" in text:
        raise HostError(f"LVM's metadata of thin pool {pool} are not as expected: mend it by hand (lvmthin(7))")
    return metadata[: volume.start()] + changed + metadata[volume.end() :]
