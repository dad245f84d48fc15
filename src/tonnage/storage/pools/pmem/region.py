"""One region of persistent memory with a pool's volumes and their records. Blocking.

The records are files of a small file system in a namespace of their own, of mode `sector` (sectors are written
atomically) with the label RECORDS. So they move with the DIMMs, and cannot disagree with a copy elsewhere. A namespace
is ours only if a record has its UUID; all others are left alone, whatever their labels.

A record of length 0 is of a namespace that is being made or removed. It is written before ndctl is called, so leftovers
of a kill can be distinguished from foreign namespaces, and the next open removes them. Its namespace has the label
HALF. One with another label is never removed: its record is restored from an earlier moment. The records' own namespace
has the label UNFINISHED until it can be used.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection
from pathlib import Path
from uuid import UUID, uuid4

from tonnage.base.errors import ExhaustedError, HostError, UnavailableError, host_errors
from tonnage.host import files, mount, ndctl
from tonnage.host.ndctl import Ndctl, PmemNamespace, Region
from tonnage.host.run import run
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.directory.directory import Directory
from tonnage.storage.pools.fs import block_device
from tonnage.storage.pools.fs.formats import FORMATS, MI
from tonnage.storage.pools.pmem import overhead

log = logging.getLogger(__name__)
RECORDS, UNFINISHED = "tonnage-records", "tonnage-records-unfinished"
HALF = "tonnage+unfinished"
"""The label of a volume's namespace that is being made or removed; no volume has such a name."""
RECORDS_SIZE = 32 * MI
"""Raw bytes that records take of a region, rounded up to its alignment: enough for the maximum number of labels."""
_RUN = Path("/run/tonnage")
_PAUSES = (0.0, 0.1, 0.2, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0)  # seconds
_OPTIONS = ("nodev", "nosuid", "noexec", "errors=remount-ro")


class PmemRegion:
    """A region with labels, and the records of its volumes while it is open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = Directory(_RUN, "pmem")  # until it is open
        self.tool = Ndctl()
        self._lock = threading.Lock()  # of two ndctl at once in a region one fails
        self._held = -1
        self._mounted: Path | None = None

    def open(self) -> None:
        """Lock the region; make the namespace for records if there is none yet. Raises: UnavailableError, HostError."""
        try:
            with host_errors(f"records of {self.name}", error=UnavailableError):
                self._held = take(self.name)
                self.tool = Ndctl(self._held)
                self._mounted = self._mount(self._home())
                self.directory = Directory(self._mounted, "pmem")
                self.directory.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the region. Idempotent."""
        self.directory.close()
        if self._mounted is not None:
            mount.umount(self._mounted, lazy=True)
            self._mounted.rmdir()
        self._mounted = None
        if self._held >= 0:
            os.close(self._held)
        self._held = -1

    def _mount(self, home: PmemNamespace) -> Path:
        path = _RUN / "pmem" / str(home.uuid)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not mount.is_mount(path):
            mount.mount(home.device, path, "ext4", _OPTIONS)
        elif not block_device.is_mounted(home.device, path):
            raise UnavailableError(f"{path} is a mount of something else than {home.device}: unmount it")
        return path

    def _home(self) -> PmemNamespace:
        """The namespace of the records."""
        found = []
        for namespace in ndctl.namespaces(self.name):
            if namespace.label == UNFINISHED:
                log.info("removing half-made place for records region=%s", self.name)
                self.tool.destroy(namespace.name)
            elif namespace.label == RECORDS:
                found.append(namespace)
        if len(found) > 1:
            names = " and ".join(namespace.name for namespace in found)
            raise UnavailableError(
                f"{self.name} has records in {names}: destroy the wrong one (ndctl destroy-namespace)"
            )
        home = self.tool.ready(found[0]) if found else self._make_home()
        if home.mode != "sector":
            raise UnavailableError(
                f"{home.name} of {self.name} has the label {RECORDS} and mode {home.mode}, not sector"
            )
        return home

    def _make_home(self) -> PmemNamespace:
        region, uuid = self.region, uuid4()
        size = -(-RECORDS_SIZE // region.align) * region.align
        home = self.tool.create(self.name, mode="sector", size=size, uuid=uuid, label=UNFINISHED)
        length = home.usable // 4096 * 4096
        with block_device.locked(home.device) as fd:
            run(FORMATS["ext4"].mkfs(home.device, length, uuid, prezeroed=False), pass_fds=(fd,))
            os.fsync(fd)
        self.tool.rename(home, RECORDS)
        return self.namespace(uuid)

    @property
    def region(self) -> Region:
        """The current state of the region. Raises: UnavailableError."""
        try:
            return ndctl.region(self.name)
        except HostError as failure:
            raise UnavailableError(f"{self.name}: {failure}") from failure

    def without(self, trash: Collection[UUID]) -> Region:
        """The state of the region once the namespaces of trash are destroyed. Raises: UnavailableError, HostError."""
        if not trash:
            return self.region
        found = ndctl.namespaces(self.name)
        gone = [namespace for namespace in found if namespace.uuid in trash]
        return self.region.without(gone, [namespace for namespace in found if namespace not in gone])

    def find(self, uuid: UUID) -> PmemNamespace | None:
        """The namespace of that UUID. Raises: HostError."""
        return ndctl.find(self.name, uuid)

    def namespace(self, uuid: UUID) -> PmemNamespace:
        """The namespace of that UUID with its device, in its own mode. Raises: HostError when it is gone."""
        found = self.find(uuid)
        if found is None:
            raise HostError(f"{self.name} has no namespace {uuid} any more (ndctl list -N): its content is lost")
        if found.device and not ndctl.is_raw(found):
            return found
        with self._lock:
            return self.tool.ready(found)

    def make(self, record: VolumeRecord, mode: str) -> PmemNamespace:
        """Make the namespace of a record of length 0, whose `made` is the needed bytes.

        After a failure, leftovers are removed. Raises: ExhaustedError, HostError.
        """
        region = self.region
        raw = overhead.raw_size(mode, record.made, region.align)
        if raw > region.largest or not region.slots:
            raise ExhaustedError(f"volume {record.name}: {raw} bytes do not fit any more into {self.name} in one piece")
        with self._lock:
            try:
                made = self.tool.create(self.name, mode=mode, size=raw, uuid=record.uuid, label=HALF)
                if made.usable < record.made:
                    raise HostError(f"{made.name} has {made.usable} usable bytes, {record.made} are needed")
            except BaseException:
                self._destroy(record.uuid)
                raise
            else:
                return made

    def relabel(self, uuid: UUID, label: str) -> None:
        """Change the label of a volume's namespace; its device is gone for a moment. Idempotent.

        Raises: PreconditionError while it is in use, HostError.
        """
        with self._lock:
            found = self.find(uuid)
            if found is not None and found.label != label:
                self.tool.rename(self.tool.ready(found), label)

    def destroy(self, uuid: UUID) -> None:
        """Destroy a namespace of ours. Idempotent. Raises: PreconditionError while in use, HostError."""
        with self._lock:
            self._destroy(uuid)

    def _destroy(self, uuid: UUID) -> None:
        if (found := self.find(uuid)) is not None:
            self.tool.destroy(found.name)


def take(region: str) -> int:
    """Lock a region for this process until the descriptor is closed. Raises: UnavailableError, OSError.

    An orphaned ndctl of a killed process holds the lock for a moment.
    """
    _RUN.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(_RUN / f"pmem-{region}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    for pause in _PAUSES:
        time.sleep(pause)
        if files.try_lock(fd):
            return fd
    os.close(fd)
    raise UnavailableError(f"{region} is in use by another pool or process: stop that one first")


def label_of(name: str) -> str:
    """The label of a volume's namespace: the volume's name, for people only."""
    return name[: ndctl.MAX_LABEL]


def select(wanted: str, where: str) -> list[Region]:
    """The regions of a pool. Raises: UnavailableError, saying what to do."""
    found = ndctl.regions()
    if wanted:
        found = [region for region in found if wanted in (region.name, f"{region.cookie:#x}")]
        if not found:
            there = ", ".join(region.name for region in ndctl.regions()) or "none"
            raise UnavailableError(
                f"{where}: there is no region {wanted} of persistent memory, there are: {there} (ndctl list -R): name"
                " one of these, by its iset_id where they may be numbered anew, or `pmem` for all"
            )
    usable = [region for region in found if region.labelled and not region.readonly]
    if usable:
        return usable
    if not found:
        raise UnavailableError(
            f"{where}: this machine has no persistent memory, or no region of it (ndctl list -R): load the modules"
            " (modprobe nfit nd_pmem, cxl_pmem for CXL), set it up as persistent (ipmctl create -goal, cxl"
            " create-region), or do without this pool here"
        )
    name = found[0].name
    raise UnavailableError(
        f"{where}: {name} is read-only or has no labels, and so it holds one namespace only. If nothing on"
        f" it is of use: ndctl disable-region {name}; ndctl init-labels --force all; ndctl enable-region {name}"
    )
