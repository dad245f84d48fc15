"""Records as LVM tags: written with the logical volume by one command, changed by one.

`tonnage.v` is the format, `tonnage.sum` the checksum of all others. `tonnage.kind` is the TagKind of the logical volume
(none for a volume). `tonnage.p.KEY` are class parameters, `tonnage.m.KEY` the changed ones that override them,
`tonnage.o.KEY` the owner record. `lvs -o +lv_tags` shows them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import msgspec

from tonnage.host import lvm
from tonnage.storage.pools.base.record import FORMAT, VolumeRecord, check, checksum, newer
from tonnage.storage.pools.core.wipe import EraseJob

_UNSEALED = 1
_OURS = "tonnage"
_SUM = "sum"
_MAPS = {"p": "parameters", "m": "mutable", "o": "owner"}
_FIELDS = {"v": "version", "fs": "fstype"} | {
    name: name for name in ("name", "size", "length", "uuid", "created", "state")
}
"""Tags that each record has, and its fields."""
_EXTRA = {
    name.replace("_", "-"): name for name in ("from_snapshot", "from_volume", "from_folder", "mkfs", "made", "pending")
}
"""Tags that a record has only with a value."""


class TagKind(Enum):
    """The use of a logical volume of ours that is not a volume."""

    VOLUME = ""
    SNAPSHOT = "snapshot"
    COPY = "copy"
    """A volume that is being created: its tags are those of the volume, its name is not."""
    ORIGIN = "origin"
    """A deleted volume that its thick snapshots still require."""
    ERASING = "erasing"
    """A deleted volume or snapshot that is being erased."""
    SCRATCH = "scratch"
    """A temporary helper of a call, unused after the call."""


@dataclass(frozen=True)
class TagEntry:
    """The parsed tags of a logical volume. method, done: of one that is being erased."""

    kind: TagKind
    record: VolumeRecord
    method: str = ""
    done: int = 0

    def job(self) -> EraseJob:
        """The rest of the work for one that is being erased."""
        record = self.record
        return EraseJob(record.uuid.hex, record.name, self.method, record.length, reserved=record.size, done=self.done)


def is_ours(tags: Sequence[str]) -> bool:
    """Whether a volume is tonnage's, also one with a damaged record."""
    return any(tag.startswith(f"{_OURS}.") for tag in tags)


def encode(entry: TagEntry) -> list[str]:
    """The tags for a record. Raises: InvalidError when a value is too long for a tag."""
    record = entry.record
    plain = {tag: str(getattr(record, field)) for tag, field in _FIELDS.items()}
    plain["fs"] = "" if record.block else record.fstype
    kind = TagKind.VOLUME if entry.kind is TagKind.COPY else entry.kind
    extra = {tag: str(getattr(record, field) or "") for tag, field in _EXTRA.items()}
    extra |= {"kind": kind.value, "pending": "yes" if record.pending else ""}
    extra |= {"erase": entry.method, "erased": str(entry.done or "")}
    plain |= {key: value for key, value in extra.items() if value}
    tags = [lvm.tag(_OURS, key, value=value) for key, value in plain.items()]
    for short, field in _MAPS.items():
        tags += [lvm.tag(_OURS, short, key, value=value) for key, value in getattr(record, field).items()]
    return tags if record.version == _UNSEALED else [*tags, _checksum(tags)]


def _checksum(tags: Sequence[str]) -> str:
    """The checksum tag for other tags, independent of their order."""
    return lvm.tag(_OURS, _SUM, value=checksum("\n".join(sorted(tags)).encode()))


def change(before: Sequence[str], after: TagEntry) -> list[str]:
    """Arguments of the lvchange that replaces tags by those of a record; empty without a difference.

    It is one commit of the group's metadata, so half of it is never visible. Foreign tags stay.
    """
    old, new = {tag for tag in before if is_ours([tag])}, set(encode(after))
    words = [word for tag in sorted(new - old) for word in ("--addtag", tag)]
    return words + [word for tag in sorted(old - new) for word in ("--deltag", tag)]


def decode(tags: Sequence[str]) -> TagEntry:
    """The record in tags; foreign tags are skipped.

    Raises: ValueError when it is damaged or of a later tonnage: tags that differ from what encode() returns.
    """
    ours = [tag for tag in tags if tag.startswith(f"{_OURS}.")]
    sums = [tag for tag in ours if tag.startswith(f"{_OURS}.{_SUM}=")]
    rest = [tag for tag in ours if tag not in sums]
    if sums and sums != [_checksum(rest)]:
        raise ValueError("its checksum is wrong")
    entry = _decode(rest, is_sealed=bool(sums))
    if sorted(encode(entry)) != sorted(ours):
        raise ValueError("it has unknown tags")
    check(entry.record)
    return entry


def _decode(tags: Sequence[str], *, is_sealed: bool) -> TagEntry:
    plain: dict[str, str] = {}
    maps: dict[str, dict[str, str]] = {field: {} for field in _MAPS.values()}
    for text in tags:
        key, value = lvm.untag(text)
        rest = key.partition(".")[2]
        group, _, name = rest.partition(".")
        if group in _MAPS and name:
            maps[_MAPS[group]][name] = value
        elif rest in plain:
            raise ValueError(f"there are two tags {_OURS}.{rest}")
        else:
            plain[rest] = value
    try:
        version = int(plain["v"])
        if is_sealed and version > FORMAT:
            raise newer(version)
        if version != (FORMAT if is_sealed else _UNSEALED):
            raise ValueError(f"its format is {version}" if is_sealed else "it has no checksum")
        record = _record(plain, maps)
        return TagEntry(TagKind(plain.get("kind", "")), record, plain.get("erase", ""), int(plain.get("erased", "0")))
    except KeyError as failure:
        raise ValueError(f"there is no tag {_OURS}.{failure.args[0]}") from None
    except msgspec.ValidationError as failure:
        raise ValueError(str(failure)) from None


def _record(plain: Mapping[str, str], maps: Mapping[str, Mapping[str, str]]) -> VolumeRecord:
    fields = {field: plain[tag] for tag, field in _FIELDS.items()}
    fields |= {field: plain[tag] for tag, field in _EXTRA.items() if tag in plain}
    flags = {"block": not plain["fs"], "pending": plain.get("pending", "") == "yes"}
    return msgspec.convert({**fields, **flags, **maps}, VolumeRecord, strict=False)


_SIGNS = {TagKind.SNAPSHOT: "s", TagKind.COPY: "c", TagKind.ORIGIN: "o", TagKind.ERASING: "e", TagKind.SCRATCH: "x"}


def lv_name(group: str, entry: TagEntry) -> str:
    """The logical volume's name for a record. Only those of volumes have no '+', as volumes' names have none."""
    if entry.kind is TagKind.VOLUME:
        return volume_name(group, entry.record.name)
    if entry.kind is TagKind.SNAPSHOT:
        return snapshot_name(group, entry.record.name)
    return f"{_SIGNS[entry.kind]}+{entry.record.uuid.hex}"


def found_at(group: str, lv: str, entry: TagEntry) -> TagEntry:
    """Check the name of a logical volume against its tags `entry`; return what it is.

    Raises: ValueError where the two disagree, as when the tags are restored from an earlier moment. So a volume is
    never taken for a half-made one.
    """
    if entry.kind is TagKind.VOLUME and lv == lv_name(group, replace(entry, kind=TagKind.COPY)):
        return replace(entry, kind=TagKind.COPY)
    is_renamed_later = entry.kind in (TagKind.ORIGIN, TagKind.ERASING)
    if entry.kind is TagKind.COPY or (lv != lv_name(group, entry) and not is_renamed_later):
        raise ValueError(f"its tags are those of {entry.kind.value or 'volume'} {entry.record.name}")
    return entry


def volume_name(group: str, name: str) -> str:
    """The logical volume's name for a volume: the same, or a hash where LVM does not allow it."""
    return name if lvm.fits(group, name) else f"t_{_hash(name)}"


def snapshot_name(group: str, name: str) -> str:
    """The logical volume's name for a snapshot."""
    plain = f"{_SIGNS[TagKind.SNAPSHOT]}+{name}"
    return plain if lvm.fits(group, plain) else f"{_SIGNS[TagKind.SNAPSHOT]}+t+{_hash(name)}"


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]
