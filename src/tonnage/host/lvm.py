"""LVM by its own program: one `lvm` command per operation, its reports as data. Blocking.

It writes nothing in /etc: settings that differ from lvm.conf are passed to each command by --config. lvm itself makes
and verifies nodes under /dev, so it works with udev, without it, and in a container that sees only /dev. We never wait
for udev. A device is identified by the kernel's data, never by a link alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from tonnage.base.errors import (
    ExhaustedError,
    HostError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    host_errors,
)
from tonnage.host import files
from tonnage.host.run import CommandError, run

AT_ONCE = 4
"""Commands of one process that run at a time. LVM locks the volume group, more would only wait for it."""
_KEEP = 64 * 1024**2
_TIMEOUT = 120.0
_LOCKS = "/run/lock/lvm"
_CONFIG = (
    "activation{udev_sync=0 udev_rules=0 verify_udev_operations=1 monitoring=0 error_when_full=1"
    " thin_pool_autoextend_threshold=100} devices{obtain_device_list_from_udev=0} backup{archive=0}"
    " global{use_lvmpolld=0 event_activation=0}"
)
_NAME = re.compile(r"[A-Za-z0-9_+.][-A-Za-z0-9_+.]*")
_RESERVED = re.compile(r"_(cdata|cmeta|corig|cvol|iorig|mimage|mlog|pmspare|rimage|rmeta|tdata|tmeta|vdata|vorigin)")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/:")
_PART = re.compile(r"_r(image|meta)_[0-9]+$")
_ESCAPE = re.compile(r"\+([0-9A-F]{2})")
_ABSENT = re.compile(r'volume group "?\S+ not found', re.I)
_MAX_TAG = 1024
_gate = threading.BoundedSemaphore(AT_ONCE)


def check_group(name: str) -> str:
    """Return name if it is valid for a volume group. Raises: InvalidError."""
    if not _NAME.fullmatch(name) or len(mapper_name(name, "")) > 81 or name in (".", ".."):
        raise InvalidError(
            f"volume group {name[:40]!r}: want letters, digits, '+', '_', '.' or '-', at most 80 characters"
        )
    return name


def check_thin(name: str) -> str:
    """Return name if it is valid for a thin pool. Raises: InvalidError."""
    if not fits("", name) or len(name) > 60:
        raise InvalidError(f"thin pool {name[:40]!r}: want a name that LVM allows, at most 60 characters")
    return name


def fits(group: str, name: str) -> bool:
    """Whether name is valid for a logical volume: its device-mapper name has at most 127 characters too."""
    plain = _NAME.fullmatch(name) and not name.startswith(("snapshot", "pvmove")) and name not in (".", "..")
    return bool(plain) and not _RESERVED.search(name) and len(mapper_name(group, name)) <= 127


def tag(*words: str, value: str) -> str:
    """A tag `word.word=value`; characters that LVM forbids in tags are written +XX.

    Raises: InvalidError when it is too long.
    """
    text = f"{'.'.join(_escape(word) for word in words)}={_escape(value)}"
    if len(text) > _MAX_TAG:
        raise InvalidError(f"{'.'.join(words)[:60]} of {len(value)} characters is too long for an LVM tag: shorten it")
    return text


def untag(text: str) -> tuple[str, str]:
    """Key and value of a tag; both as they were before tag() escaped them."""
    key, _, value = text.partition("=")
    return _unescape(key), _unescape(value)


def _escape(text: str) -> str:
    return "".join(c if c in _PLAIN else "".join(f"+{byte:02X}" for byte in c.encode()) for c in text)


def _unescape(text: str) -> str:
    raw = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    return raw.encode("latin-1", errors="replace").decode(errors="replace")


@dataclass(frozen=True)
class PhysicalVolume:
    """A physical volume of a group.

    extents, free: numbers; free is 0 where nothing can be allocated. allocatable: whether that is not so.
    """

    name: str
    extents: int
    free: int
    missing: bool
    allocatable: bool = True


@dataclass(frozen=True)
class LogicalVolume:
    """A logical volume in LVM's report.

    size: bytes, of a thick snapshot those for changes. pool: its thin pool. data, metadata: fullness of a thin pool in
    percent. zeroes: whether it zeroes new blocks. layout: as linear, `raid,raid1` or `thin,pool`. origin: the volume
    that it is a snapshot of. health: LVM's health status.
    """

    name: str
    size: int
    tags: tuple[str, ...]
    layout: str
    pool: str = ""
    data: float = 0.0
    metadata: float = 0.0
    when_full: str = ""
    zeroes: bool = False
    active: bool = False
    origin: str = ""
    health: str = ""

    @property
    def is_thick_snapshot(self) -> bool:
        """Whether it is a copy-on-write snapshot of a thick volume."""
        return bool(self.origin) and not self.pool


@dataclass(frozen=True)
class VolumeGroup:
    """A volume group and everything in it.

    extent: bytes of one. most: maximum number of volumes, 0 for unlimited; count: their number without hidden ones.
    placed: the extents of each logical volume by disk, with those of its hidden parts; of "" what is free.
    """

    name: str
    extent: int
    extents: int
    free: int
    missing: int
    writable: bool
    disks: tuple[PhysicalVolume, ...]
    volumes: Mapping[str, LogicalVolume]
    most: int = 0
    count: int = 0
    placed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


_FIELDS = {
    "vg": "vg_name,vg_extent_size,vg_extent_count,vg_free_count,vg_missing_pv_count,vg_permissions,vg_exported,"
    "max_lv,lv_count,pv_count",
    "pv": "pv_name,pv_pe_count,pv_pe_alloc_count,pv_allocatable,pv_missing",
    "lv": "lv_name,lv_size,lv_tags,lv_layout,pool_lv,data_percent,metadata_percent,lv_when_full,lv_active,origin,"
    "lv_health_status",
    "seg": "lv_name,zero",
    "pvseg": "pv_name,lv_name,pvseg_size",
}


def read(name: str) -> VolumeGroup:
    """Read everything about a group, by one command.

    Raises: UnavailableError when there is none of that name, saying what to do, HostError.
    """
    command = ["fullreport", "--reportformat", "json", "--units", "b", "--nosuffix", "--binary"]
    for report, fields in _FIELDS.items():
        command += ["--configreport", report, "-o", fields]
    try:
        return parse(lvm(*command, name, keep=_KEEP))
    except UnavailableError as failure:
        if not _ABSENT.search(str(failure)):
            raise
        raise UnavailableError(
            f"there is no volume group {name}, or none of its disks can be seen (lvm pvs, lvm vgs): name another one,"
            f" or make it, `tonnage pools init lvm:{name} DEVICE...`"
        ) from failure


def parse(text: str) -> VolumeGroup:
    """Parse a full report of one group.

    Raises: HostError when it is malformed or incomplete: a missing volume would be taken for a deleted one.
    """
    with _understanding("fullreport"):
        [report] = [r for r in msgspec.json.decode(text)["report"] if r.get("vg")]
        return _group(report)


@contextmanager
def _understanding(command: str) -> Iterator[None]:
    """Raise HostError where a report is not of the form that the body expects."""
    try:
        yield
    except (msgspec.MsgspecError, KeyError, ValueError, TypeError, AttributeError) as failure:
        raise HostError(f"lvm {command} is not understood: {failure!r}") from failure


def _group(report: Mapping[str, list[dict[str, str]]]) -> VolumeGroup:
    [vg] = report["vg"]
    disks = tuple(_disk(pv) for pv in report["pv"])
    zeroing = {seg["lv_name"] for seg in report["seg"] if _yes(seg["zero"])}
    volumes = {lv["lv_name"].strip("[]"): _volume(lv, zeroes=lv["lv_name"] in zeroing) for lv in report["lv"]}
    seen = sum(not lv["lv_name"].startswith("[") for lv in report["lv"])
    if (len(disks), seen) != (int(vg["pv_count"]), int(vg["lv_count"])):
        raise ValueError(f"it lists {seen} of {vg['lv_count']} volumes, {len(disks)} of {vg['pv_count']} disks")
    writable = vg["vg_permissions"] in ("1", "writeable") and vg["vg_exported"] in ("", "0")
    numbers = (vg["vg_extent_size"], vg["vg_extent_count"], vg["vg_free_count"], vg["vg_missing_pv_count"])
    extent, extents, free, missing = map(int, numbers)
    most, placed = int(vg["max_lv"]), _placed(report["pvseg"])
    return VolumeGroup(vg["vg_name"], extent, extents, free, missing, writable, disks, volumes, most, seen, placed)


def _placed(segments: list[dict[str, str]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for segment in segments:
        disks = found.setdefault(_PART.sub("", segment["lv_name"].strip("[]")), {})
        disks[segment["pv_name"]] = disks.get(segment["pv_name"], 0) + int(segment["pvseg_size"])
    return found


def _disk(pv: Mapping[str, str]) -> PhysicalVolume:
    extents, missing = int(pv["pv_pe_count"]), _yes(pv["pv_missing"])
    usable = _yes(pv["pv_allocatable"]) and not missing
    free = extents - int(pv["pv_pe_alloc_count"]) if usable else 0
    return PhysicalVolume(pv["pv_name"], extents, free, missing, usable)


def _volume(lv: Mapping[str, str], *, zeroes: bool) -> LogicalVolume:
    return LogicalVolume(
        lv["lv_name"].strip("[]"),
        int(lv["lv_size"]),
        tuple(filter(None, lv["lv_tags"].split(","))),
        lv["lv_layout"],
        lv["pool_lv"].strip("[]"),
        _percent(lv["data_percent"]),
        _percent(lv["metadata_percent"]),
        lv["lv_when_full"],
        zeroes,
        _yes(lv["lv_active"]),
        lv["origin"].strip("[]"),
        lv["lv_health_status"],
    )


def _yes(value: str) -> bool:
    return value not in ("", "0", "-1", "unknown")


def _percent(value: str) -> float:
    return max(0.0, float(value)) if value else 0.0


def lvm(*arguments: str, config: str = "", keep: int = 64 * 1024) -> str:
    """Run one lvm command, AT_ONCE of them at a time; return its output. config: additional settings.

    Raises: ExhaustedError, NotFoundError, PreconditionError (in use), UnavailableError (the group is not there) by
    lvm's message, HostError.
    """
    with _gate:
        return _run(arguments, config, keep)


def lvm_alone(*arguments: str, keep: int = 64 * 1024) -> str:
    """Run one lvm command inside alone(), without LVM's locks and without the limit of concurrent commands.

    Other commands may be waiting for this process. Raises: what lvm() does.
    """
    return _run((*arguments[:1], "--nolocking", *arguments[1:]), "", keep)


def _run(arguments: Sequence[str], config: str, keep: int) -> str:
    command = ["lvm", arguments[0], "--config", f"{_CONFIG} {config}".strip(), *arguments[1:]]
    try:
        return run(command, timeout=_TIMEOUT, keep=keep)
    except CommandError as failure:
        raise meaning(arguments, failure) from failure


_MEANINGS: tuple[tuple[re.Pattern[str], Callable[[str], Exception]], ...] = (
    (
        re.compile(
            r"insufficient (free space|suitable)|not enough (free|pvs)|no space left|maximum metadata size"
            r"|maximum number of logical volumes|reached threshold",
            re.I,
        ),
        ExhaustedError,
    ),
    (
        re.compile(r"volume group .* not found|cannot process volume group|while pvs are missing", re.I),
        UnavailableError,
    ),
    (re.compile(r"failed to find logical volume", re.I), NotFoundError),
    (re.compile(r"in use\.|contains a filesystem|used by another device", re.I), PreconditionError),
)


def meaning(arguments: Sequence[str], failure: CommandError) -> Exception:
    """The exception for a failed command, by its message."""
    said = " ".join(line.strip() for line in failure.stderr.splitlines() if "WARNING" not in line)
    for pattern, error in _MEANINGS:
        if pattern.search(said):
            return error(f"lvm {arguments[0]}: {said}")
    return HostError(f"lvm {arguments[0]} {arguments[-1]}: {said or failure}")


def extents_of(group: str, name: str) -> list[str]:
    """The extents of a logical volume's content, as `DISK:FIRST-LAST`. Raises: HostError."""
    fields = "lv_name,seg_pe_ranges"
    text = lvm("lvs", "--all", "--segments", "--reportformat", "json", "-o", fields, group, keep=_KEEP)
    with _understanding("lvs"):
        [report] = msgspec.json.decode(text)["report"]
        rows = [(row["lv_name"].strip("[]"), row["seg_pe_ranges"]) for row in report["seg"]]
    parts = [ranges.split() for lv, ranges in rows if lv == name or lv.startswith(f"{name}_rimage_")]
    found = [word for words in parts for word in words if word.startswith("/")]  # others name parts
    if not found:
        raise HostError(f"lvm lvs does not say where {group}/{name} is")
    return found


@dataclass(frozen=True)
class ThinNumbers:
    """LVM's metadata of a thin pool. transaction: the id of its last change. devices: ids of its volumes."""

    transaction: int
    devices: frozenset[int]


def thin_numbers(group: str, pool: str) -> ThinNumbers:
    """The numbers of a thin pool; call it inside alone(). Raises: HostError."""
    fields = "lv_name,pool_lv,thin_id,transaction_id"
    text = lvm_alone("lvs", "--all", "--reportformat", "json", "-o", fields, group, keep=_KEEP)
    with _understanding("lvs"):
        [report] = msgspec.json.decode(text)["report"]
        rows = {row["lv_name"].strip("[]"): row for row in report["lv"]}
        devices = frozenset(int(row["thin_id"]) for row in rows.values() if row["pool_lv"].strip("[]") == pool)
        return ThinNumbers(int(rows[pool]["transaction_id"]), devices)


@contextmanager
def alone(group: str) -> Iterator[None]:
    """Take LVM's own lock of a group: only --nolocking commands can change it meanwhile.

    As LVM does (lib/misc/lvm-flock.c): the lock's file is removed on release, so after taking it the file is checked
    again. Raises: HostError.
    """
    path = f"{_LOCKS}/V_{group}"
    with host_errors(f"cannot take LVM's lock {path}"):
        fd = os.open(path, flags := os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        while not files.is_at(path, fd):
            os.close(fd)
            fd = os.open(path, flags, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(fd)


def mapper_name(group: str, name: str) -> str:
    """The device-mapper name of a logical volume."""
    return f"{group.replace('-', '--')}-{name.replace('-', '--')}"


def device(group: str, name: str) -> str | None:
    """The node of an active logical volume, None when it is not active. Raises: HostError.

    It is /dev/mapper/NAME, or /dev/dm-N where the former is missing or shows something else.
    """
    wanted = mapper_name(group, name)
    node = f"/dev/mapper/{wanted}"
    with suppress(OSError):
        number = os.stat(node).st_rdev
        if _kernel_name(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}") == wanted:
            return node
    return next((f"/dev/{entry}" for entry in _mapped() if _kernel_name(f"/sys/block/{entry}") == wanted), None)


def _mapped() -> list[str]:
    """The kernel's names of all devices of device mapper. Raises: HostError."""
    with host_errors("cannot list block devices"):
        return [entry for entry in os.listdir("/sys/block") if entry.startswith("dm-")]


def suspended(group: str) -> list[str]:
    """The device-mapper names of a group's suspended devices, hidden ones too. Raises: HostError."""
    prefix, found = mapper_name(group, ""), []
    for folder in (f"/sys/block/{entry}" for entry in _mapped()):
        name = _kernel_name(folder)
        with suppress(OSError):
            if name.startswith(prefix) and not name.startswith(f"{prefix}-"):  # that is another group's
                with open(f"{folder}/dm/suspended") as file:
                    found += [name] if file.read().strip() == "1" else []
    return sorted(found)


def _kernel_name(folder: str) -> str:
    with suppress(OSError), open(f"{folder}/dm/name") as file:
        return file.read().strip()
    return ""
