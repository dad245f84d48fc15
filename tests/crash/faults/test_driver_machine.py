"""Any calls in any order by several clients at once, with errors of the kernel and of tools in between and restarts: the
driver over real pools and a model agree on what there is, what is in it and what room is left.

A call that fails for an injected error may have done its work or not, but whoever repeats it, or takes it back, finds
the right thing, also after a restart; and when everything is deleted nothing is left. More: `--machines 1000`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.crash.faults.faultpoints import ERRORS, LATE, Fault, FaultPoints
from tests.crash.faults.machine import MI, Call, Model, Vol
from tests.programs import need
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.errors import TonnageError
from tonnage.csi.client.types import ContentSource, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError, label_of
from tonnage.host import loop, mount
from tonnage.host.filesystem import may_grow_ext4
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.directory.directory import MARKER

pytestmark = [pytest.mark.timeout(1800)]

TOTAL = 160 * MI
CLIENTS = 3
FAILED = frozenset({Code.INTERNAL, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED, Code.FAILED_PRECONDITION})
"""What may be answered when an error was injected: never that something is not there, or that all is well."""
A_MOMENT_LATER = {
    ("stage", Code.ABORTED),
    ("inline", Code.ABORTED),
    *((method, Code.FAILED_PRECONDITION) for method in ("delete", "end_inline", "clone", "snapshot")),
}
"""The kernel lets go of a loop device a moment after its last umount, on a busy machine a long one: repeat the call."""
PATIENCE = 300  # tenths of a second
T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """A kind of pool."""

    pool: str
    options: str
    blocks: bool = True
    keeps_data: bool = True


KINDS = {
    "fake": Kind("fake", "", blocks=False, keeps_data=False),
    "image": Kind("image", ",sparse=yes,overcommit=yes"),
    "btrfs": Kind("btrfs", ",sparse=yes,overcommit=yes", blocks=False),
}
VOLUMES, SNAPSHOTS, TARGETS = ("a", "b", "c"), ("s", "t"), ("1", "2")
INLINE = {"csi-i": 16 * MI, "csi-j": 24 * MI}
"""Inline volumes: a pod asks for the same one each time."""
SIZES = st.sampled_from([16 * MI, 24 * MI, 40 * MI, 64 * MI])
OFTEN = ("os.open", "os.fsync", "os.rename", "os.unlink", "fcntl.ioctl", "libc.syscall", "libc.umount2")
FAULTS = st.builds(
    lambda function, which, skip, lasting, late: Fault(
        function, ERRORS[function][which % len(ERRORS[function])], skip, lasting, late and function in LATE
    ),
    st.sampled_from((*sorted(ERRORS), *OFTEN * 4)),
    st.integers(0, 9),
    st.integers(0, 2) | st.integers(0, 6) | st.integers(0, 30),
    st.booleans(),
    st.booleans(),
)


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, str, str, str, int, bool]:
    """A method and what it may need, made a Call when the model is known."""
    method = draw(st.sampled_from(METHODS))
    volume, snapshot, target = (draw(st.sampled_from(names)) for names in (VOLUMES, SNAPSHOTS, TARGETS))
    return method, volume, snapshot, target, draw(SIZES), draw(st.booleans())


METHODS = (
    *("create", "create", "clone", "clone_of_snapshot", "delete", "stage", "stage", "unstage", "publish", "publish"),
    *("unpublish", "snapshot", "delete_snapshot", "expand", "grow", "stats", "get", "inline", "inline", "end_inline"),
    *("next",) * 10,
)
"""`next` is what comes next in a volume's life; the others come out of turn."""


BATCHES = st.lists(_calls(), min_size=1, max_size=4)
SELDOM = st.sampled_from([False, False, False, True])


class _Faults(logging.Handler):
    """Remembers every error that was logged with a traceback: one that nobody had foreseen."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


class Machine(RuleBasedStateMachine):
    """A driver, its clients and the model."""

    def __init__(self, kind: Kind, points: FaultPoints, counts: Counter[str]) -> None:
        super().__init__()
        self.kind, self.points, self.counts = kind, points, counts
        self.folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="machine", dir="/var/tmp")))
        self.logged = _Faults()
        logging.getLogger().addHandler(self.logged)
        self.runner = asyncio.Runner()
        self.model = Model(TOTAL, shares=False, grows=kind.pool != "image" or may_grow_ext4())
        self.written = 0
        self.agreed = False
        self.said: dict[Call, str] = {}

    @initialize()
    def begin(self) -> None:
        """Make the pool and serve."""
        for name in (*VOLUMES, *INLINE):
            (self.folder / name).mkdir()
        self.pool = self._pool()
        self.clients = [FullCsiClient(self.folder / "csi.sock", timeout=300, node_timeout=300) for _ in range(CLIENTS)]
        self.run(self._start())
        self.counts["lives"] += 1

    def _pool(self) -> Pool:
        where = f":{self.folder / 'pool'}" if self.kind.pool != "fake" else ""
        return make(parse(f"{self.kind.pool}{where},name=p,size={TOTAL // MI}Mi{self.kind.options}"), disks=Disks())

    async def _start(self, *, is_open: bool = False) -> None:
        if not is_open:
            await self.pool.open()
        self.endpoint = DriverEndpoint(Driver("n", {"p": self.pool}, self.folder / "state"), self.folder / "csi.sock")
        await self.endpoint.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        """Delete everything, and see that nothing is left."""
        try:
            if self.agreed:
                self._end()
            elif hasattr(self, "endpoint"):
                self.run(self._stop())  # what went wrong is told already
        finally:
            logging.getLogger().removeHandler(self.logged)
            self.runner.close()
            for entry in reversed(list(mount.mounts())):
                if entry.target.startswith(f"{self.folder}/"):
                    mount.umount(entry.target, lazy=True)
            for index, path in loop.attached():
                if path.startswith(f"{self.folder}/"):
                    loop.detach(index)
            shutil.rmtree(self.folder)

    def _end(self) -> None:
        for name, volume in list(self.model.volumes.items()):
            for target in list(volume.targets):
                self._quietly(Call("unpublish", name, other=target))
            self._quietly(Call("unstage", name))
            self._quietly(Call("delete", name))
        for name in list(self.model.snapshots):
            self._quietly(Call("delete_snapshot", name))
        for name in list(self.model.inline):
            self._quietly(Call("end_inline", name))
        self.agrees()
        self.run(self._stop())
        for client in self.clients:
            client.close()
        self._nothing_is_left()

    async def _stop(self) -> None:
        await self.endpoint.stop()
        await self.pool.close()

    def _nothing_is_left(self) -> None:
        for name in VOLUMES:
            assert os.listdir(self.folder / name) in ([], ["staging"]), "something is left of a publication"
        for folder in (*INLINE, "state/inline"):
            assert not (self.folder / folder).exists() or os.listdir(self.folder / folder) == []
        inside = f"{self.folder}/"
        assert [entry.target for entry in mount.mounts() if entry.target.startswith(inside)] == []
        pool = self.folder / "pool"
        if pool.is_dir():
            left = {path.name for path in pool.rglob("*") if path.is_file()} - {MARKER, "pool.img"}
            assert not left, f"left in the pool: {left}"

    # Calls

    @rule(drawn=BATCHES)
    def calls_that_go_well(self, drawn: list[tuple[Any, ...]]) -> None:
        """Some at once, without errors."""
        self._calls(drawn, None, twice=False, undo=False, restart=False)

    @rule(drawn=BATCHES, fault=FAULTS, twice=st.booleans(), undo=st.booleans(), restart=SELDOM)
    def calls_with_errors(
        self, drawn: list[tuple[Any, ...]], fault: Fault, twice: bool, undo: bool, restart: bool
    ) -> None:
        """Some at once; what fails for the error is repeated or taken back, by a new process at times."""
        self._calls(drawn, fault, twice=twice, undo=undo, restart=restart)

    @rule(drawn=BATCHES, fault=FAULTS, twice=st.booleans(), undo=st.booleans(), restart=SELDOM)
    def more_calls_with_errors(
        self, drawn: list[tuple[Any, ...]], fault: Fault, twice: bool, undo: bool, restart: bool
    ) -> None:
        """The same: each rule is taken as often as any other."""
        self._calls(drawn, fault, twice=twice, undo=undo, restart=restart)

    def _calls(
        self, drawn: list[tuple[Any, ...]], fault: Fault | None, *, twice: bool, undo: bool, restart: bool
    ) -> None:
        self.agreed = False
        batch = self._together([self._call(*item) for item in drawn])
        if twice:
            batch.append(batch[0])
        with self.points.failing(fault):
            codes = self._make(batch)
            hit = self.points.hit
        self.counts["calls"] += len(batch)
        self.counts["errors"] += hit
        open_ends = self._judge(batch, codes, fault if hit else None)
        if restart:
            self._restart(None)
        for call in open_ends:
            self._quietly(self._undone(call) if undo else call)

    def _undone(self, call: Call) -> Call:
        """What takes a call back; no orchestrator unstages what is published."""
        found = self.model.volumes.get(call.name)
        return call if call.method == "stage" and found is not None and found.targets else call.undone_by()

    def _call(self, method: str, volume: str, snapshot: str, target: str, size: int, flag: bool) -> Call:
        if method == "next":
            method = self._next(volume, flag=flag)
        if method.startswith("clone"):
            source = f"snapshot/{snapshot}" if method == "clone_of_snapshot" else f"volume/{VOLUMES[size % 3 - 1]}"
            origin = self.model.origin(source)
            found = self.model.volumes.get(volume)
            if origin is None:
                origin = found or Vol(16 * MI)
            return Call("clone", volume, size=origin.size, block=origin.block, other=source)
        if method == "snapshot":
            return Call(method, snapshot, other=volume)
        if method == "delete_snapshot":
            return Call(method, snapshot)
        if method.endswith("inline"):
            name = list(INLINE)[target == TARGETS[0]]
            return Call(method, name, size=INLINE[name])
        if method == "unstage" and volume in self.model.volumes and self.model.volumes[volume].targets:
            method = "stats"  # no orchestrator unstages what is published
        block = method == "create" and flag and self.kind.blocks
        return Call(method, volume, size=size, block=block, other=target, readonly=method == "publish" and flag)

    def _next(self, name: str, *, flag: bool) -> str:
        volume = self.model.volumes.get(name)
        if volume is None:
            return "create"
        if not volume.staged:
            return "delete" if volume.data and flag else "stage"
        if not volume.targets:
            return "unstage" if volume.data and flag else "publish"
        return "snapshot" if flag else "unpublish" if volume.data else "publish"

    def _together(self, calls: Sequence[Call]) -> list[Call]:
        """Those that have nothing to do with one another."""
        chosen: list[Call] = []
        touched: set[str] = set()
        for call in calls:
            if not touched & call.touched:
                chosen.append(call)
                touched |= call.touched
        return chosen

    def _make(self, batch: Sequence[Call]) -> list[Code]:
        async def all_at_once() -> list[Code]:
            return await asyncio.gather(
                *(self._answer(self.clients[number % CLIENTS], call) for number, call in enumerate(batch))
            )

        return self.run(all_at_once())

    async def _answer(self, client: FullCsiClient, call: Call) -> Code:
        try:
            await self._send(client, call)
        except CsiError as failure:
            self.said[call] = failure.message
            return failure.code
        return Code.OK

    async def _send(self, client: FullCsiClient, call: Call) -> None:
        vid, staging = f"p/{call.name}", self.folder / call.name / "staging"
        target = self.folder / call.name / call.other
        capability = VolumeCapability(block=self._is_block(call))
        if call.method == "create":
            assert (await client.create_volume(call.name, call.size, [capability])).size >= call.size
        elif call.method == "clone":
            kind, _, name = call.other.partition("/")
            source = ContentSource(**{f"{kind}_id": f"p/{name}"})
            await client.create_volume(call.name, call.size, [capability], source=source)
        elif call.method == "delete":
            await client.delete_volume(vid)
        elif call.method == "stage":
            await client.stage(vid, staging, capability)
        elif call.method == "unstage":
            await client.unstage(vid, staging)
        elif call.method == "publish":
            await client.publish(vid, target, capability, staging=staging, readonly=call.readonly)
        elif call.method == "unpublish":
            await client.unpublish(vid, target)
        elif call.method == "inline":
            context = {names.CSI_EPHEMERAL: "true", "size": str(call.size)}
            await client.publish(call.name, self.folder / call.name / "1", capability, context=context)
        elif call.method == "end_inline":
            await client.unpublish(call.name, self.folder / call.name / "1")
        elif call.method == "snapshot":
            await client.create_snapshot(call.name, f"p/{call.other}")
        elif call.method == "delete_snapshot":
            await client.delete_snapshot(f"p/{call.name}")
        elif call.method == "expand":
            assert (await client.expand_volume(vid, call.size)).size >= call.size
        elif call.method == "grow":
            await client.expand_on_node(vid, staging)
        elif call.method == "stats":
            assert (await client.volume_stats(vid, staging)).total > 0
        else:
            await self._get(client, call.name)

    async def _get(self, client: FullCsiClient, name: str) -> None:
        volume, health = await client.get_volume(f"p/{name}")
        assert volume.size == self.model.volumes[name].size
        assert not health.abnormal or self.points.hit, health

    def _is_block(self, call: Call) -> bool:
        if call.method in ("create", "clone"):
            return call.block
        return call.name in self.model.volumes and self.model.volumes[call.name].block

    def _judge(self, batch: Sequence[Call], codes: Sequence[Code], fault: Fault | None) -> list[Call]:
        """Compare with the model; the calls of which nobody knows what they did."""
        open_ends: list[Call] = []
        expected = [call.expected(self.model) for call in batch]
        wanted, free = sum(call.grows(self.model) for call in batch), self.model.free
        for call, code, right in zip(batch, codes, expected, strict=True):
            self.counts[label_of(code)] += 1
            if code is Code.OK and code in right:
                call.apply(self.model)
                continue
            if code in right:
                continue
            if code is Code.RESOURCE_EXHAUSTED and call.grows(self.model) > 0 and wanted > free:
                continue
            if (code is Code.ABORTED and batch.count(call) > 1) or (call.method, code) in A_MOMENT_LATER:
                open_ends.append(call)
                continue
            assert fault is not None, (
                f"{call}: {label_of(code)} ({self.said.get(call)}), expected {[label_of(c) for c in right]}"
            )
            assert code in FAILED, f"{call}: {label_of(code)} ({self.said.get(call)}) after {fault}"
            open_ends.append(call)
        return open_ends

    def _quietly(self, call: Call) -> None:
        """Nothing fails now: it is answered as if nothing had ever failed."""
        for _ in range(PATIENCE):
            (code,) = self._make([call])
            if not self._judge([call], [code], None):
                return
            self.run(asyncio.sleep(0.1))
        raise AssertionError(f"{call} is still rejected: {self.said.get(call)}")

    @rule(fault=st.none() | FAULTS)
    def restart(self, fault: Fault | None) -> None:
        """A new process, as far as the pool can tell; opening may fail at first."""
        self.agreed = False
        self._restart(fault)

    def _restart(self, fault: Fault | None) -> None:
        if self.kind.pool == "fake":
            return
        self.run(self._stop())
        for client in self.clients:
            client.close()
        self.pool = self._pool()
        is_open = False
        with self.points.failing(fault), suppress(TonnageError):
            self.run(self.pool.open())
            is_open = True
        if is_open and self.points.hit:  # records that could not be read are told as damaged until the next time
            self.run(self.pool.close())
            self.pool, is_open = self._pool(), False
        self.run(self._start(is_open=is_open))
        self.counts["restarts"] += 1

    @rule(name=st.sampled_from(VOLUMES))
    def write(self, name: str) -> None:
        """A pod writes to where it sees the volume."""
        volume = self.model.volumes.get(name)
        writable = [target for target, readonly in volume.targets.items() if not readonly] if volume else []
        if volume is None or not writable or not self.kind.keeps_data:
            return
        self.written += 1
        volume.data = f"{name} {self.written:06}"
        path = self.folder / name / writable[0]
        fd = os.open(path if volume.block else path / "data", os.O_WRONLY | (0 if volume.block else os.O_CREAT), 0o600)
        try:
            os.pwrite(fd, volume.data.encode(), 0)
            os.fsync(fd)
        finally:
            os.close(fd)

    # What must hold after every step

    @invariant()
    def agrees(self) -> None:
        """What the driver tells, and what can be seen."""
        self.agreed = False
        if not hasattr(self, "endpoint"):
            return
        assert not self.logged.found, "\n".join(self.logged.found)
        self.run(self._tells_the_same())
        if self.kind.keeps_data:
            for name, volume in self.model.volumes.items():
                self._shows(name, volume)
            for name in INLINE:
                assert mount.is_mount(self.folder / name / "1") == (name in self.model.inline)
        self.agreed = True

    async def _tells_the_same(self) -> None:
        client = self.clients[0]
        listed = {found.id: found.size for found in await client.list_volumes()}
        assert listed == {f"p/{name}": volume.size for name, volume in self.model.volumes.items()}
        snapshots = {found.id: found.volume_id for found in await client.list_snapshots()}
        assert snapshots == {f"p/{name}": f"p/{found.volume}" for name, found in self.model.snapshots.items()}
        assert (await client.get_capacity()).available == self.model.free

    def _shows(self, name: str, volume: Vol) -> None:
        staging = self.folder / name / "staging"
        assert mount.is_mount(staging / "device" if volume.block else staging) == volume.staged
        for target in TARGETS:
            path = self.folder / name / target
            assert mount.is_mount(path) == (target in volume.targets)
            if target in volume.targets and volume.data:
                assert self._read(path, volume) == volume.data

    def _read(self, path: Path, volume: Vol) -> str:
        fd = os.open(path if volume.block else path / "data", os.O_RDONLY)
        try:
            return os.pread(fd, len(volume.data), 0).decode()
        finally:
            os.close(fd)


@pytest.mark.parametrize(
    ("kind", "lives"),
    [
        pytest.param("fake", 10),
        pytest.param("image", 12, marks=pytest.mark.real),
        pytest.param("btrfs", 12, marks=pytest.mark.real),
    ],
)
def test_driver_and_model_agree(
    kind: str, lives: int, request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    if kind != "fake":
        request.getfixturevalue("real_folder")
        need(f"mkfs.{'btrfs' if kind == 'btrfs' else 'ext4'}")
    counts: Counter[str] = Counter()
    lives = request.config.getoption("--machines") or lives
    checked = settings(
        max_examples=lives,
        stateful_step_count=30,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # a life is short enough to be read, and making it shorter takes minutes
        report_multiple_bugs=False,
    )
    with FaultPoints().installed() as points:

        class Made(Machine):
            def __init__(self) -> None:
                super().__init__(KINDS[kind], points, counts)

        run_state_machine_as_test(Made, settings=checked)
    codes = {key: number for key, number in counts.most_common() if key[0].isupper()}
    tell(
        f"driver and model ({kind}): {counts['lives']} lives, {counts['calls']} calls by {CLIENTS} clients, answered"
        f" {codes}, {counts['errors']} errors injected, {counts['restarts']} restarts"
    )
