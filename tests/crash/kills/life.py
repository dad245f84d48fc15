"""Lives of volumes with a kill in each call. After each kill a new driver process is asked the same (or the call is
undone first): the answer, the data, and what is there on the machine are as in a life without kills.

Which step of a call a life kills at goes by the life's number, the seed: one after the other all kinds of steps are
taken, then their repetitions, so that enough lives have killed before every single one. Who is killed: the driver with
all that it has started; the driver alone, while its tools go on, or stop just there and go on when the next driver has
been asked; or the tool alone.
"""

from __future__ import annotations

import os
import random
import signal
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message
from tests.crash.kills.calls import POD, Call, Calls
from tests.crash.kills.kinds import Kind
from tests.crash.kills.machine import Machine
from tests.crash.kills.process import Answer, Processes
from tests.crash.kills.tracer import Step

from tonnage.csi._proto import csi_pb2, inventory_pb2
from tonnage.csi.driver.driver import CONTEXT_CREATED
from tonnage.csi.errors import Code
from tonnage.host import mount

SIZE = 4096
"""Bytes that a pod writes."""
_WAITING = frozenset({Code.ABORTED, Code.UNAVAILABLE, Code.FAILED_PRECONDITION})
"""What a driver may answer while a tool of its predecessor is still at work."""
WAYS = ("all", "driver", "held", "tool")
_RESPONSES: Mapping[str, type[Message]] = {
    method.name: getattr(module, method.output_type.name)
    for module, name in ((csi_pb2, "Controller"), (csi_pb2, "Node"), (inventory_pb2, "Trash"))
    for method in module.DESCRIPTOR.services_by_name[name].methods
}


@dataclass
class Learnt:
    """Of one call: its steps by what they are; in tools, the same; its answer; what it leaves."""

    steps: dict[str, list[int]] = field(default_factory=dict)
    tools: dict[str, list[int]] = field(default_factory=dict)
    body: Message | None = None
    left: object = None

    def learn(self, step: Step) -> None:
        """Remember a step. Names with numbers in them are of one kind."""
        what = "".join("0" if letter.isdigit() else letter for letter in step.what)
        self.steps.setdefault(what, []).append(step.number)
        if step.tool:
            self.tools.setdefault(what, []).append(step.number)

    def pick(self, turn: int, *, tool: bool) -> int:
        """The step whose turn it is."""
        steps = self.tools if tool else self.steps
        kinds = list(steps)
        numbers = steps[kinds[turn % len(kinds)]]
        return numbers[turn // len(kinds) % len(numbers)]

    @property
    def count(self) -> int:
        """How many steps there are."""
        return sum(map(len, self.steps.values()))


@dataclass
class Tally:
    """What was done."""

    kills: int = 0
    lives: int = 0
    undone: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    places: set[tuple[str, int]] = field(default_factory=set)
    tools: Counter[str] = field(default_factory=Counter)


class Data:
    """What pods have written into the volumes, and whether it is still there wherever they are shown."""

    def __init__(self, kind: Kind, calls: Calls) -> None:
        self._block = kind.block
        self._calls = calls
        self.contents: dict[str, bytes] = {}
        """By volume or snapshot."""

    def do(self, call: Call, content: bytes) -> None:
        """What happens when a call is answered."""
        if (then := call.then) is None:
            return
        if then.what == "write":
            self.contents[then.volume] = content
            self._write(self._calls.target(then.volume), content)
        elif then.what == "forget":
            self.contents.pop(then.volume, None)
        elif then.source in self.contents:
            self.contents[then.volume] = self.contents[then.source]

    def _write(self, target: Path, content: bytes) -> None:
        flags = os.O_WRONLY if self._block else os.O_CREAT | os.O_WRONLY
        fd = os.open(target if self._block else target / "data", flags, 0o600)
        try:
            os.write(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)

    def check(self) -> None:
        """Raises AssertionError when a volume shows something else."""
        for volume, content in self.contents.items():
            for place in (self._calls.staging(volume), self._calls.target(volume)):
                node = place / "device" if self._block and place.is_dir() else place
                if self._block:
                    is_shown = node.exists() and stat.S_ISBLK(os.stat(node).st_mode)
                else:
                    is_shown, node = mount.is_mount(place), place / "data"
                if is_shown:
                    with open(node, "rb") as file:
                        assert file.read(SIZE) == content, f"the data of {volume} at {place} has changed"


class Lives:
    """Learns a kind's life and repeats it with kills. undone: how often a call that can be is undone after a kill."""

    def __init__(self, kind: Kind, machine: Machine, *, undone: float = 0.2) -> None:
        self.machine = machine
        self.tally = Tally()
        self.processes = Processes(kind, machine)
        self.undone = undone
        self.kind = kind
        self._calls = Calls(kind, machine.folder)
        self._all = {call.name: call for call in self._calls.all()}
        self._learnt: dict[str, Learnt] = {}

    @property
    def steps(self) -> int:
        """How many steps a life has, as far as it was learnt."""
        return sum(learnt.count for learnt in self._learnt.values())

    def learn(self) -> None:
        """Live without kills, first in this process: which steps each call has, what it answers, what it leaves."""
        for number in range(2):  # the first may still make things that stay, such as folders
            data = Data(self.kind, self._calls)
            for call in self._all.values():
                if number == 0:
                    self.processes.warm_up(call)
                else:
                    self._learn(call)
                data.do(call, b"learnt".ljust(SIZE))

    def _learn(self, call: Call) -> None:
        learnt = self._learnt[call.name] = Learnt()

        def remember(step: Step) -> bool:
            learnt.learn(step)
            return False

        answer, _ = self.processes.trace(call, remember)
        assert answer.code is Code.OK, f"{call.name}: {answer.code.name} {answer.why}"
        learnt.body = _plain(call, answer)
        learnt.left = _still(self.machine)

    def live(self, number: int) -> None:
        """A life with a kill in each call. Raises AssertionError with its story."""
        _Life(self, number).live()
        self.tally.lives += 1

    def learnt(self, name: str) -> Learnt:
        """What is known of a call."""
        return self._learnt[name]


def _still(machine: Machine) -> object:
    """What is there when the kernel has freed what it frees later."""
    import time

    found = machine.look()
    for _ in range(200):
        time.sleep(0.02)
        if (now := machine.look()) == found:
            return found
        found = now
    return found


def _plain(call: Call, answer: Answer) -> Message:
    """An answer without what differs from life to life: when something was made."""
    body = _RESPONSES[call.method].FromString(answer.body)
    if isinstance(body, csi_pb2.CreateVolumeResponse):
        assert body.volume.volume_context.pop(CONTEXT_CREATED)
    if isinstance(body, csi_pb2.CreateSnapshotResponse):
        assert body.snapshot.creation_time.seconds
        body.snapshot.ClearField("creation_time")
    return body


class _Life:
    def __init__(self, lives: Lives, number: int) -> None:
        self._lives = lives
        self._number = number
        self._processes = lives.processes
        self._calls = lives._all
        self._data = Data(lives.kind, lives._calls)
        self._places = lives._calls
        self._chance = random.Random(number)
        self._story: list[str] = []

    def live(self) -> None:
        before = list(self._calls)[-1]
        self._processes.warm = self._number % 2 == 1
        try:
            for index, call in enumerate(self._calls.values()):
                self._one(call, before, self._number + index)
                before = call.name
        except BaseException as failure:
            failure.add_note("\n".join(self._story))
            failure.add_note(f"the same life again: --kills 1 --kill-seed {self._number}")
            raise

    def _one(self, call: Call, before: str, turn: int) -> None:
        learnt, chance = self._lives.learnt(call.name), self._chance
        shares = (70, 10, 0 if self._lives.kind.waits else 10, 10)
        way = chance.choices(WAYS, shares)[0] if learnt.tools else "all"
        at = learnt.pick(turn, tool=way in ("held", "tool"))
        self._kill(call, at, way)
        if chance.random() < 0.1:  # the next driver is killed while it opens its pool, or soon after
            self._kill(call, chance.randint(1, 12), "all")
        if call.undo and chance.random() < self._lives.undone:
            self._story.append(f"undone by {call.undo}")
            self._lives.tally.undone += 1
            self._ask(self._calls[call.undo], before)
            if chance.random() < 0.5:
                self._kill(call, chance.randint(1, learnt.count), "all")
        self._ask(call, call.name)
        self._data.do(call, chance.randbytes(SIZE))
        self._data.check()

    def _kill(self, call: Call, at: int, way: str) -> None:
        tracer, tally = self._processes.tracer, self._lives.tally
        done: list[Step] = []
        tracer.held = tracer.held and tracer.left

        def kill(step: Step) -> bool:
            if done:  # a tool that goes on without its driver, or a driver without its tool
                return way == "held"
            if step.number != at:
                return False
            done.append(step)
            return self._shoot(step, way)

        answer, _ended = self._processes.trace(call, kill)
        what = done[0].what if done else "its end"
        self._story.append(f"{call.name}: {way} killed at step {at}, before {what} ({answer.code.name} {answer.why})")
        if done:
            tally.kills += 1
            tally.ways[way] += 1
            tally.places.add((call.name, at))
            if done[0].tool:
                tally.tools[done[0].what.split(":")[0]] += 1

    def _shoot(self, step: Step, way: str) -> bool:
        tracer = self._processes.tracer
        if way == "all":
            tracer.kill_all()
        elif way == "tool":
            os.kill(step.pid, signal.SIGKILL)
        else:
            tracer.held = way == "held"
            os.kill(tracer.driver, signal.SIGKILL)
        return way != "driver"

    def _ask(self, call: Call, state: str) -> None:
        """Make the call in a process that is not killed; then all is as after the call named `state`."""
        if self._processes.tracer.left:
            self._ask_early(call)
        formatted, seen = self._mark()
        answer = self._processes.ask(call)
        if seen is not None and mount.is_mount(seen.parent):
            seen.unlink()
        assert answer.code is Code.OK, f"{call.name}: {answer.code.name} {answer.why}"
        assert answer.formats <= (0 if formatted or set(answer.formatted) & _volumes(call) else 1), "formatted again"
        assert _plain(call, answer) == self._lives.learnt(call.name).body
        self._data.check()
        self._lives.machine.check(self._lives.learnt(state).left)

    def _ask_early(self, call: Call) -> None:
        """Ask while tools of the killed process are at work; then let them end."""
        answer = self._processes.ask(call, times=1)
        self._story.append(f"asked while a tool is at work: {answer.code.name} {answer.why}")
        assert answer.code is Code.OK or answer.code in _WAITING, f"{call.name}: {answer.code.name} {answer.why}"
        self._processes.tracer.outlast()

    def _mark(self) -> tuple[bool, Path | None]:
        """Leave something in a file system that nobody has written to, as somebody might have begun to."""
        for volume in ("v", POD):
            staging = self._places.staging(volume)
            if not self._lives.kind.block and mount.is_mount(staging) and not os.path.exists(staging / "data"):
                try:
                    (staging / "seen").touch()
                except OSError:
                    return True, None
                return True, staging / "seen"
        return False, None


def _volumes(call: Call) -> set[str]:
    """The volume that a call is about."""
    request = call.request
    return {str(getattr(request, "volume_id", "")).removeprefix("p/"), str(getattr(request, "name", ""))}
