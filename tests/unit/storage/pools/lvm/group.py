"""A volume group in memory: LVM itself runs in the guests of tests/vm only."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tonnage.host.lvm import LogicalVolume, PhysicalVolume, VolumeGroup

EXTENT = 4 * 1024**2


class Group:
    """A group of 1000 extents; `commands` are what was run, without --quiet and --yes."""

    def __init__(self) -> None:
        self.volumes: dict[str, LogicalVolume] = {}
        self.commands: list[list[str]] = []
        self.suspended: list[str] = []
        self.devices: dict[str, str] = {}

    def read(self, name: str) -> VolumeGroup:
        used = sum(volume.size // EXTENT for volume in self.volumes.values())
        disks = (PhysicalVolume("/dev/a", 1000, 1000 - used, missing=False),)
        return VolumeGroup(name, EXTENT, 1000, 1000 - used, 0, True, disks, dict(self.volumes), 0, len(self.volumes))

    def run(self, *words: str) -> None:
        command = [word for word in words if word not in ("--quiet", "--yes")]
        self.commands.append(command)
        if command[0] == "lvcreate":
            self._create(command)
        elif command[0] == "lvrename":
            old, new = command[-2:]
            self.volumes[new] = replace(self.volumes.pop(old), name=new)
        elif command[0] == "lvremove":
            del self.volumes[command[-1].partition("/")[2]]
        elif command[0] == "lvextend":
            name = command[-1].partition("/")[2]
            extents = int(command[command.index("--extents") + 1])
            self.volumes[name] = replace(self.volumes[name], size=extents * EXTENT)
        elif command[0] == "lvchange" and "--refresh" not in command:
            self._change(command)
        elif command[0] == "vgchange":
            self.suspended = []

    def _create(self, command: list[str]) -> None:
        name, extents = command[command.index("--name") + 1], int(command[command.index("--extents") + 1])
        tags = tuple(word for before, word in pairwise(command) if before == "--addtag")
        origin = command[-1].partition("/")[2]
        self.volumes[name] = LogicalVolume(name, extents * EXTENT, tags, "linear", origin=origin)

    def _change(self, command: list[str]) -> None:
        name = command[-1].partition("/")[2]
        pairs = list(pairwise(command))
        gone = {word for before, word in pairs if before == "--deltag"}
        added = [word for before, word in pairs if before == "--addtag"]
        kept = [tag for tag in self.volumes[name].tags if tag not in gone]
        self.volumes[name] = replace(self.volumes[name], tags=(*kept, *added))
