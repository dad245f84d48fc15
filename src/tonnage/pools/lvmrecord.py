"""The record of a volume as LVM tags: written with the volume by one command, changed by one.

`tonnage.v` is the format, `tonnage.state` the only tag that ever changes; `tonnage.p.KEY` are class parameters,
`tonnage.o.KEY` what is known of the owner. `lvs -o +lv_tags` shows them to people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tonnage.errors import Invalid
from tonnage.host import lvm
from tonnage.pools.base import State, check_name
from tonnage.pools.directory import Record

VERSION = 1
_OURS = "tonnage"
_VERSION_TAG = f"{_OURS}.v="


class Newer(ValueError):
    """Written by a later tonnage."""


@dataclass(frozen=True)
class StateChange:
    """Arguments of the lvchange that sets a state, whatever it was."""

    state: State

    def arguments(self) -> list[str]:
        """One command, so one commit of the group's metadata: no moment without a state or with two."""
        others = [other for other in State if other is not self.state]
        return ["--addtag", _state(self.state.value)] + [w for o in others for w in ("--deltag", _state(o.value))]


def _state(value: str) -> str:
    return lvm.tag(_OURS, "state", value=value)


def is_ours(tags: Sequence[str]) -> bool:
    """Whether a volume is tonnage's."""
    return any(tag.startswith(_VERSION_TAG) for tag in tags)


def encode(record: Record) -> list[str]:
    """The tags of a record. Raises Invalid when a value is too long for one."""
    plain = {"v": str(VERSION), "name": record.name, "size": str(record.size), "length": str(record.length)}
    plain |= {"uuid": str(record.uuid), "created": repr(record.created), "state": record.state}
    plain["fs"] = "" if record.block else record.fstype
    tags = [lvm.tag(_OURS, key, value=value) for key, value in plain.items()]
    tags += [lvm.tag(_OURS, "p", key, value=value) for key, value in record.parameters.items()]
    return tags + [lvm.tag(_OURS, "o", key, value=value) for key, value in record.owner.items()]


def decode(tags: Sequence[str]) -> Record:
    """The record in tags; ones that are not ours are left out. Raises ValueError when it is damaged, Newer."""
    ours: dict[str, str] = {}
    parameters: dict[str, str] = {}
    owner: dict[str, str] = {}
    for text in tags:
        key, value = lvm.untag(text)
        first, _, rest = key.partition(".")
        if first != _OURS:
            continue
        group, _, name = rest.partition(".")
        if group in ("p", "o") and name:
            (parameters if group == "p" else owner)[name] = value
        else:
            ours[rest] = value
    try:
        return _record(ours, parameters, owner)
    except KeyError as failure:
        raise ValueError(f"there is no tag {_OURS}.{failure.args[0]}") from None
    except Invalid as failure:
        raise ValueError(str(failure)) from None


def _record(ours: dict[str, str], parameters: dict[str, str], owner: dict[str, str]) -> Record:
    if int(ours["v"]) > VERSION:
        raise Newer(f"format {ours['v']}")
    return Record(
        check_name(ours["name"]),
        int(ours["size"]),
        UUID(ours["uuid"]),
        length=int(ours["length"]),
        block=not ours["fs"],
        fstype=ours["fs"],
        state=State(ours["state"]).value,
        parameters=parameters,
        owner=owner,
        created=float(ours["created"]),
    )


def volume_name(group: str, name: str) -> str:
    """The logical volume of a volume: its name, or a hash of it where LVM has no such names."""
    return name if lvm.fits(group, name) else f"t_{hashlib.sha256(name.encode()).hexdigest()[:32]}"
