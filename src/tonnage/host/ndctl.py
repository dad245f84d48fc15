"""Persistent memory: regions and namespaces, read from sysfs and changed by ndctl. Blocking.

sysfs is read without a fork (Documentation/ABI/testing/sysfs-bus-nvdimm). Changes are left to libndctl's tool, which
knows the order of steps and the layout of labels. A namespace is identified by the UUID in its label: its name
(`namespace0.1`) and its device's may change with a restart of the machine. ndctl uses the region's one idle namespace
for a new one, so one of two concurrent calls fails: change one thing at a time in each region.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import msgspec

from tonnage.base.errors import ExhaustedError, HostError, NotFoundError, PreconditionError, host_errors
from tonnage.host.run import CommandError, run

DEVICES = Path("/sys/bus/nd/devices")
MODES = ("fsdax", "devdax", "sector")
MAX_LABEL = 63
"""Bytes of a namespace's name in its label (UEFI 2.7, section 13.19)."""
SECTOR = 4096
"""Bytes of a sector in mode `sector`."""
_TIMEOUT = 600.0  # seconds: the pages of terabytes are described one by one
_KERNEL_MODES = {"memory": "fsdax", "dax": "devdax", "safe": "sector", "raw": "raw"}
_REGION = re.compile(r"region\d+")
_NAMESPACE = re.compile(r"namespace\d+\.\d+")
_CHARACTER = re.compile(r"dax\d+\.\d+")


@dataclass(frozen=True)
class Region:
    """A region of persistent memory.

    cookie: its identity wherever its DIMMs are plugged in, 0 for none. align: a namespace's size is a multiple of it,
    in bytes. free: bytes; largest: contiguous ones. labelled: whether its DIMMs have labels, without which it is
    exactly one namespace. slots: namespaces that can still be added to the labels. start: its physical address.
    """

    name: str
    size: int
    cookie: int
    align: int
    free: int
    largest: int
    labelled: bool
    readonly: bool
    slots: int
    start: int = 0

    def without(self, gone: Sequence[PmemNamespace], stay: Sequence[PmemNamespace]) -> Region:
        """The region once some of its namespaces are destroyed and the others stay. No I/O."""
        pieces, end = [self.largest], self.start
        for namespace in sorted(stay, key=lambda found: found.start):
            pieces.append(namespace.start - end)
            end = -(-(namespace.start + namespace.size) // self.align) * self.align
        pieces.append(self.start + self.size - end)
        if not self.start:  # the kernel shows no addresses: two neighbors are not seen to be one piece
            pieces = [self.largest, *(namespace.size for namespace in gone)]
        free = self.free + sum(namespace.size for namespace in gone)
        return replace(self, free=free, largest=max(pieces), slots=self.slots + len(gone))


@dataclass(frozen=True)
class PmemNamespace:
    """A namespace.

    size: raw bytes, from the physical address `start`. label: the name in its label. mode: `fsdax`, `devdax`, `sector`
    or `raw`. device: its node, "" while it has none; usable: bytes of that.
    """

    name: str
    region: str
    uuid: UUID | None
    label: str
    size: int
    mode: str
    device: str = ""
    usable: int = 0
    start: int = 0


class _Created(msgspec.Struct):
    """The fields of ndctl's output that we need."""

    dev: str


def regions(base: Path = DEVICES) -> list[Region]:
    """All regions of persistent memory, by number. Raises: HostError."""
    names: list[str] = []
    with host_errors(f"cannot list persistent memory in {base}"), suppress(FileNotFoundError):
        names = [entry for entry in os.listdir(base) if _REGION.fullmatch(entry)]
    found = [_region(base, name) for name in sorted(names, key=lambda name: int(name.removeprefix("region")))]
    return [region for region in found if region is not None]


def _region(base: Path, name: str) -> Region | None:
    path = base / name
    if _text(path / "devtype") not in ("nd_pmem", ""):  # nd_volatile
        return None
    dimms = [_text(path / entry).partition(",")[0] for entry in sorted(os.listdir(path)) if entry.startswith("mapping")]
    slots = [_number(base / dimm / "available_slots") for dimm in dimms if dimm.startswith("nmem")]
    return Region(
        name,
        _number(path / "size"),
        _number(path / "set_cookie"),
        _number(path / "align") or 1,
        _number(path / "available_size"),
        _number(path / "max_available_extent"),
        _number(path / "nstype") == 5,  # ND_DEVICE_NAMESPACE_PMEM
        _text(path / "read_only") == "1",
        min(slots, default=0),
        _number(path / "resource"),
    )


def region(name: str, base: Path = DEVICES) -> Region:
    """One region. Raises: NotFoundError, HostError."""
    found = _region(base, name) if _REGION.fullmatch(name) and (base / name).exists() else None
    if found is None:
        raise NotFoundError(f"there is no region {name[:40]} of persistent memory (ndctl list -R)")
    return found


def namespaces(region: str, base: Path = DEVICES) -> list[PmemNamespace]:
    """The namespaces of a region, without the kernel's idle one. Raises: HostError."""
    found = [_namespace(base, region, name) for name in _names(region, base)]
    return [namespace for namespace in found if namespace.size]


def find(region: str, uuid: UUID, base: Path = DEVICES) -> PmemNamespace | None:
    """The namespace of that UUID in a region, None when there is none. Raises: HostError."""
    for name in _names(region, base):
        if _uuid(base / region / name / "uuid") == uuid and (found := _namespace(base, region, name)).size:
            return found
    return None


def _names(region: str, base: Path) -> list[str]:
    with host_errors(f"cannot list the namespaces of {region}"):
        return sorted(entry for entry in os.listdir(base / region) if _NAMESPACE.fullmatch(entry))


def _namespace(base: Path, region: str, name: str) -> PmemNamespace:
    path = base / region / name
    holder = _text(path / "holder")
    owner = base / region / holder if holder else path
    device = _device(owner)
    return PmemNamespace(
        name,
        region,
        _uuid(path / "uuid"),
        _text(path / "alt_name"),
        _number(path / "size"),
        _KERNEL_MODES.get(_text(path / "mode"), "raw"),
        device,
        _number(owner / "size") if device else 0,
        _number(path / "resource"),
    )


def _device(owner: Path) -> str:
    """The node of the block or character device below a driver's directory in sysfs."""
    with suppress(OSError):
        return f"/dev/{min(os.listdir(owner / 'block'))}"
    with suppress(OSError, ValueError):
        return f"/dev/{min(entry for entry in os.listdir(owner) if _CHARACTER.fullmatch(entry))}"
    return ""


def _text(path: Path) -> str:
    """A file of sysfs; "" where it is missing, or the device disappears meanwhile."""
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def _number(path: Path) -> int:
    with suppress(ValueError):
        return int(_text(path) or "0", 0)
    return 0


def _uuid(path: Path) -> UUID | None:
    with suppress(ValueError):
        return UUID(_text(path))
    return None


def bad_blocks(namespace: PmemNamespace) -> int:
    """Bytes of a namespace that the hardware cannot read any more, as known to the kernel."""
    owner = DEVICES / namespace.region / namespace.name
    lines = _text(Path("/sys/class/block") / Path(namespace.device).name / "badblocks") or _text(owner / "badblocks")
    return sum(int(line.split()[1]) * 512 for line in lines.splitlines() if len(line.split()) == 2)


def is_raw(namespace: PmemNamespace) -> bool:
    """Whether a namespace is in raw mode now."""
    return _text(DEVICES / namespace.region / namespace.name / "force_raw") == "1"


class Ndctl:
    """The tool that changes namespaces.

    hold: descriptors that it inherits, as of a lock. A command that outlives this process holds them open, so a later
    process can wait for its end.
    """

    def __init__(self, *hold: int) -> None:
        self._hold = hold

    def create(self, region: str, *, mode: str, size: int, uuid: UUID, label: str) -> PmemNamespace:
        """Create a namespace of `size` raw bytes, a multiple of the region's alignment, and its device.

        After a failure or a kill one with that UUID may be half made: destroy it. Raises: ExhaustedError, HostError.
        """
        words = ["create-namespace", "--region", region, "--mode", mode, "--size", str(size), "--uuid", str(uuid)]
        said = self._run(*words, "--name", label, *(["--sector-size", str(SECTOR)] if mode == "sector" else []))
        try:
            name = msgspec.json.decode(said, type=_Created).dev
        except msgspec.MsgspecError as failure:
            raise HostError(f"ndctl create-namespace: its answer is not understood: {said[:200]!r}") from failure
        made = _namespace(DEVICES, region, name)
        if made.uuid != uuid or made.mode != mode or not made.device:
            raise HostError(f"ndctl create-namespace made {made}, asked were {mode} and {uuid}")
        return made

    def destroy(self, namespace: str) -> None:
        """Destroy a namespace without overwriting its content. One that is gone is success.

        Raises: PreconditionError while its device is in use, HostError.
        """
        if (DEVICES / namespace).exists():
            self._run("destroy-namespace", "--force", namespace)

    def ready(self, namespace: PmemNamespace) -> PmemNamespace:
        """A namespace with its device, in its own mode. Idempotent. Raises: PreconditionError, HostError."""
        if is_raw(namespace):
            return self.restore(namespace)
        return namespace if namespace.device else self.enable(namespace)

    def enable(self, namespace: PmemNamespace) -> PmemNamespace:
        """Enable a namespace's device. Idempotent. Raises: HostError."""
        self._run("enable-namespace", namespace.name)
        found = _namespace(DEVICES, namespace.region, namespace.name)
        if found.uuid != namespace.uuid or not found.device:
            raise HostError(f"{namespace.name} was enabled and has no device (ndctl list -Ni, dmesg)")
        return found

    def rename(self, namespace: PmemNamespace, label: str) -> None:
        """Change a namespace's label; its device is gone for a moment. Raises: PreconditionError, HostError."""
        self._switch(namespace, "alt_name", label)

    def show_raw(self, namespace: PmemNamespace) -> PmemNamespace:
        """Show all bytes of a namespace as a block device, in raw mode, until restore().

        Raises: PreconditionError, HostError.
        """
        return self._switch(namespace, "force_raw", "1")

    def restore(self, namespace: PmemNamespace) -> PmemNamespace:
        """Leave raw mode. Idempotent. Raises: PreconditionError, HostError."""
        return self._switch(namespace, "force_raw", "0")

    def _switch(self, namespace: PmemNamespace, attribute: str, value: str) -> PmemNamespace:
        self._run("disable-namespace", namespace.name)
        path = DEVICES / namespace.region / namespace.name / attribute
        with host_errors(f"cannot write {path}"):
            path.write_text(value)
        return self.enable(namespace)

    def _run(self, *words: str) -> str:
        try:
            return run(["ndctl", *words], timeout=_TIMEOUT, pass_fds=self._hold)
        except CommandError as failure:
            raise _meaning(words, failure) from failure


_MEANINGS: tuple[tuple[re.Pattern[str], type[Exception]], ...] = (
    (re.compile(r"no space left|insufficient", re.I), ExhaustedError),
    (re.compile(r"busy|is active|in use|mounted", re.I), PreconditionError),
)


def _meaning(words: Sequence[str], failure: CommandError) -> Exception:
    said = " ".join(failure.stderr.split())
    for pattern, error in _MEANINGS:
        if pattern.search(said):
            return error(f"ndctl {words[0]}: {said}")
    return HostError(f"ndctl {' '.join(words)}: {said or failure}")
