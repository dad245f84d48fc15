"""Power cuts: a life of volumes runs on a disk that remembers the order of all writes (fusedisk.py); then the disk is
taken as it was at some moment, without some or all of what was written since its last flush, the file system and the
pool on it are brought up again, and everything that had been answered by that moment is there:

python -m tests.crash.kills.power KIND --cuts 100 --seed 1 --folder /some/empty/folder

The last line of the output says in JSON what was done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.crash.kills import fusedisk
from tests.crash.kills.calls import POD, Call, Calls
from tests.crash.kills.fusedisk import BLOCK, Disk, Event
from tests.crash.kills.kinds import KINDS, Kind
from tests.crash.kills.life import SIZE, Data
from tests.crash.kills.machine import MI, Machine
from tests.crash.kills.process import Processes
from tests.crash.kills.recovery import Contents, Expected, Recovery

from tonnage.csi.errors import Code
from tonnage.host import loop, mount
from tonnage.host.run import run

_EXT4 = ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0")
_XFS = ("mkfs.xfs", "-q", "-f", "-K", "-s", "size=4096")
_IMAGE = "image:{home},name=p,size=2Gi,sparse=yes,overcommit=yes"
POWERED: Mapping[str, Kind] = {
    "image on ext4": replace(KINDS["image sparse"], disk=_EXT4, given=256, pool=_IMAGE),
    "erasing image on ext4": replace(KINDS["image erasing"], disk=_EXT4, given=256),
    "image on xfs": replace(KINDS["image reflink"], disk=_XFS, given=320, pool=_IMAGE),
    "thick image on ext4": replace(KINDS["image thick"], disk=_EXT4, given=256),
    "raw block image on xfs": replace(KINDS["image block"], disk=_XFS, given=320),
    "btrfs": replace(KINDS["btrfs"], given=320),
}


@dataclass(frozen=True)
class Moment:
    """After this much of the log, calls[:answered] have their answers, with some of these data in the volumes."""

    at: int
    answered: int
    contents: Contents


class Recording:
    """A life on a disk that remembers. folder: of the test's own."""

    def __init__(self, kind: Kind, folder: Path, *, forgetful: bool) -> None:
        self.kind = kind
        self.forgetful = forgetful
        self.folder = folder
        self.machine = Machine(folder, folder / "disk" / "pool")
        self.log = folder / "log"
        self.blank = folder / "blank"
        self.calls = list(Calls(kind, folder).all())
        self.moments = [Moment(0, 0, {})]
        for name in "disk", "fuse":
            (folder / name).mkdir()

    def record(self) -> None:
        """Live it."""
        self.blank.touch()
        os.truncate(self.blank, self.kind.given * MI)
        run([*self.kind.disk, str(self.blank)])
        with powered(self.kind, self.folder, self.blank, log=self.log) as disk:
            self._live(disk)

    def _live(self, disk: Disk) -> None:
        data = Data(self.kind, Calls(self.kind, self.folder))
        processes = Processes(self.kind, self.machine, forgetful=self.forgetful)
        for number, call in enumerate(self.calls, 1):
            answer = processes.ask(call, times=1)
            assert answer.code is Code.OK, f"{call.name}: {answer.code.name} {answer.why}"
            before = dict(data.contents)
            content = number.to_bytes(8, "little") * (SIZE // 8)
            self.moments.append(Moment(disk.written, number, _either(call, before, content)))
            data.do(call, content)
            self.moments.append(Moment(disk.written, number, {name: (now,) for name, now in data.contents.items()}))

    def moment(self, at: int) -> Moment:
        """What held when that much was in the log."""
        return [moment for moment in self.moments if moment.at <= at][-1]


@contextmanager
def powered(
    kind: Kind, folder: Path, content: Path, changes: Sequence[Event] = (), *, log: Path | None = None
) -> Iterator[Disk]:
    """A disk with that content and these changes, its file system mounted at `<folder>/disk`."""
    disk = Disk(folder / "fuse", log)
    disk.start(content, changes)
    try:
        with _mounted(disk.path, folder / "disk", kind):
            yield disk
    finally:
        disk.stop()


def _either(call: Call, before: Mapping[str, bytes], content: bytes) -> Contents:
    """What may be in the volumes while a pod writes."""
    writes = call.then.volume if call.then is not None and call.then.what == "write" else ""
    return {name: (now, content) if name == writes else (now,) for name, now in before.items()}


@contextmanager
def _mounted(path: Path, target: Path, kind: Kind) -> Iterator[None]:
    """A disk, at its place."""
    fd = os.open(path, os.O_RDWR)
    try:
        attached = loop.attach(fd, str(path))
    finally:
        os.close(fd)
    try:
        mount.mount(attached.path, target, kind.disk[0].removeprefix("mkfs."), ("nodev", *kind.options))
    finally:
        attached.close()
    try:
        yield
    finally:
        while mount.umount(target):
            pass
        _wait_until_free(path)


def _wait_until_free(path: Path) -> None:
    """The kernel lets go of a loop device a moment after the last umount."""
    for _ in range(4000):
        if not loop.of_file(path):  # devices of other tests may be over a disk that is dead
            return
        time.sleep(0.005)
    raise AssertionError(f"{path} is still in use")


class Cuts:
    """Disks as cuts leave them, made one after the other as the log goes on."""

    def __init__(self, log: Path, blank: Path) -> None:
        self._events = list(fusedisk.events(log))
        self.base = blank
        self._fd = os.open(self.base, os.O_RDWR)
        self._done = 0

    @property
    def count(self) -> int:
        """How many events there are."""
        return len(self._events)

    def close(self) -> None:
        """No more are made."""
        os.close(self._fd)

    def choose(self, count: int, chance: random.Random) -> list[int]:
        """Places between events: half of them just after a flush, all in their order."""
        flushes = [number for number, event in enumerate(self._events, 1) if event.is_flush]
        anywhere = chance.sample(range(1, len(self._events) + 1), min(count // 2, len(self._events)))
        return sorted({*anywhere, *chance.sample(flushes, min(count - count // 2, len(flushes)))})

    def at(self, number: int) -> int:
        """How much of the log there was before that event."""
        return self._events[number].at if number < len(self._events) else self._events[-1].at + 2**40

    def make(self, number: int, chance: random.Random) -> tuple[list[Event], str]:
        """Bring `base` to the last flush before event `number`; what else is on the disk then, and what is lost."""
        flushed = number
        while flushed and not self._events[flushed - 1].is_flush:
            flushed -= 1
        for event in self._events[self._done : flushed]:
            if event.length:
                os.pwrite(self._fd, event.content, event.offset)
        self._done = max(self._done, flushed)
        kept = chance.choice((0.0, 0.5, 0.9, 1.0))
        more = [block for event in self._events[flushed:number] for block in _blocks(event) if chance.random() < kept]
        return more, f"after event {number}, {number - flushed} of them not flushed, {kept:.0%} of their blocks kept"


def _blocks(event: Event) -> Iterator[Event]:
    """A disk writes its blocks in any order, and all or nothing only of one block."""
    for start in range(0, event.length, BLOCK):
        length = min(BLOCK, event.length - start)
        yield Event(event.at, event.offset + start, length, event.content[start : start + length])


class Campaign:
    """A recording and the cuts of it."""

    def __init__(self, kind: Kind, folder: Path, seed: int, *, forgetful: bool = False) -> None:
        self.recording = Recording(kind, folder, forgetful=forgetful)
        self._chance = random.Random(seed)
        self._recovery = Recovery(kind, self.recording.machine)
        self.recoveries = self.events = 0

    def run(self, count: int) -> None:
        """Raises AssertionError with the cut that lost something."""
        self.recording.record()
        cuts = Cuts(self.recording.log, self.recording.blank)
        self.events = cuts.count
        try:
            for number in cuts.choose(count, self._chance):
                changes, what = cuts.make(number, self._chance)
                moment = self.recording.moment(cuts.at(number))
                try:
                    with powered(self.recording.kind, self.recording.folder, cuts.base, changes):
                        self._recover(moment)
                except BaseException as failure:
                    failure.add_note(f"power was cut {what}; {self._tell(moment)}")
                    raise
                self.recoveries += 1
        finally:
            cuts.close()

    def _tell(self, moment: Moment) -> str:
        calls = self.recording.calls
        before = calls[moment.answered - 1].name if moment.answered else "nothing"
        then = calls[moment.answered].name if moment.answered < len(calls) else "the end"
        return f"answered was {before}, under way {then}"

    def _recover(self, moment: Moment) -> None:
        calls = self.recording.calls
        under_way = calls[moment.answered] if moment.answered < len(calls) else None
        self._recovery.check(_expected(calls[: moment.answered], under_way, moment.contents))


def _expected(answered: Sequence[Call], under_way: Call | None, contents: Contents) -> Expected:
    """What must be there, and what may be."""
    there: set[str] = set()
    formatted: set[str] = set()
    for call in answered:
        if call.makes:
            there.add(call.volume)
        if call.removes:
            there.discard(call.volume)
            formatted.discard(call.volume)
        elif call.method == "NodeStageVolume" or call.volume == POD:
            formatted.add(call.volume)
    maybe = {under_way.volume} if under_way is not None and (under_way.makes or under_way.removes) else set()
    return Expected(there - maybe, maybe, contents, formatted, under_way)


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="cut the power of one kind of pool")
    parser.add_argument("kind", choices=POWERED)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="an empty folder on the disk to use")
    parser.add_argument("--forgetful", action="store_true", help="with a driver that does not flush, to be found out")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="power-", dir=given.folder))
    campaign = Campaign(POWERED[given.kind], folder, given.seed, forgetful=given.forgetful)
    try:
        begun = time.monotonic()
        campaign.run(given.cuts)
        print(json.dumps({"cuts": campaign.recoveries, "events": campaign.events, "seconds": time.monotonic() - begun}))
        return 0
    finally:
        campaign.recording.machine.sweep()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
