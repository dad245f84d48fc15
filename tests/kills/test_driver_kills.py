"""kill -9 in every RPC: a driver process serves one call and is killed somewhere in it; a new driver process is asked
the same again. Then all is as if nobody had been killed: the answer, the data, and what is there on the machine.

A life is a volume's (with its data taken up a second time) and a pod's inline volume; each call of it is killed once.
Sometimes the caller gives up and undoes the killed call before it makes it again, sometimes the new process is killed
as well while it opens its pool. What each call answers and leaves is learnt from a life without kills. 100,000 kills: `pytest tests/kills --kills 100000`; one life
again: `--kills 1 --kill-seed SEED` with the seed that the failure names.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.message import Message
from grpclib.client import Channel

from tonnage.csi._proto import csi_grpc, csi_pb2
from tonnage.csi.driver import CONTEXT_CREATED, Driver
from tonnage.csi.endpoint import DriverEndpoint
from tonnage.host import btrfs, loop, mount
from tonnage.host.run import run
from tonnage.pools import imagefile, imagestore
from tonnage.pools.config import make, parse
from tonnage.pools.directory import Record
from tonnage.pools.disks import Disks
from tonnage.pools.formats import FORMATS
from tonnage.pools.templates import Templates

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]  # each process has an end of its own instead

MI = 1024**2
LONGEST = 60  # seconds that a driver process may live
TRACED = ("csi", "pools", "host")
VOLUME_ID, POD = "p/v", "csi-0123456789abcdef"
WRITER = csi_pb2.VolumeCapability.AccessMode(mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)


@dataclass(frozen=True)
class Kind:
    """A kind of pool and of volume."""

    pool: str
    options: str
    block: bool = False

    @property
    def capability(self) -> csi_pb2.VolumeCapability:
        """What is asked for."""
        if self.block:
            return csi_pb2.VolumeCapability(access_mode=WRITER, block=csi_pb2.VolumeCapability.BlockVolume())
        return csi_pb2.VolumeCapability(access_mode=WRITER, mount=csi_pb2.VolumeCapability.MountVolume())


KINDS = {
    "image sparse": Kind("image", "sparse=yes,overcommit=yes"),
    "image thick": Kind("image", "sparse=no"),
    "image block": Kind("image", "sparse=yes,overcommit=yes", block=True),
    "btrfs": Kind("btrfs", "overcommit=yes"),
}


@dataclass(frozen=True)
class Call:
    """One RPC of a life. undo: name of the call that takes it back. writes: a pod writes when it is answered."""

    name: str
    service: str
    method: str
    request: Message
    undo: str = ""
    writes: bool = False


@dataclass(frozen=True)
class Answer:
    """What a driver process said. opened: lines counted when the pools were open. places: by source line the counts at
    which it ran. formats: how often a volume was formatted."""

    killed: bool
    body: bytes = b""
    opened: int = 0
    places: Mapping[str, list[int]] = field(default_factory=dict)
    formats: int = 0


@dataclass
class Rig:
    """The folder of one kind, and what is to be expected in it."""

    kind: Kind
    folder: Path
    killers: Callable[..., Any]
    home: Path = Path()  # of the pool
    opening: dict[str, list[tuple[str, list[int]]]] = field(default_factory=dict)
    calling: dict[str, list[tuple[str, list[int]]]] = field(default_factory=dict)
    """By call: the source lines that run while its pool opens, and in the call, with the counts at which they do."""
    footprints: dict[str, object] = field(default_factory=dict)
    bodies: dict[str, Message] = field(default_factory=dict)
    kills: int = 0
    undone: int = 0
    warm: bool = False
    """Whether a driver process begins with the templates of file systems that an earlier volume has left it."""
    points: set[tuple[str, str]] = field(default_factory=set)

    @property
    def staging(self) -> Path:
        """Where the volume is staged."""
        return self.folder / "staging"

    @property
    def target(self) -> Path:
        """Where a pod sees it."""
        return self.folder / "target"


def _calls(rig: Rig) -> Iterator[Call]:
    capability, staging, target = rig.kind.capability, str(rig.staging), str(rig.target)
    size = csi_pb2.CapacityRange(required_bytes=16 * MI)
    create = csi_pb2.CreateVolumeRequest(name="v", capacity_range=size, volume_capabilities=[capability])
    stage = csi_pb2.NodeStageVolumeRequest(
        volume_id=VOLUME_ID, staging_target_path=staging, volume_capability=capability
    )
    publish = csi_pb2.NodePublishVolumeRequest(
        volume_id=VOLUME_ID, staging_target_path=staging, target_path=target, volume_capability=capability
    )
    readonly = csi_pb2.NodePublishVolumeRequest(readonly=True)
    readonly.MergeFrom(publish)
    unpublish = csi_pb2.NodeUnpublishVolumeRequest(volume_id=VOLUME_ID, target_path=target)
    unstage = csi_pb2.NodeUnstageVolumeRequest(volume_id=VOLUME_ID, staging_target_path=staging)
    yield Call("create", "Controller", "CreateVolume", create, undo="delete")
    yield Call("stage", "Node", "NodeStageVolume", stage, undo="unstage")
    yield Call("publish", "Node", "NodePublishVolume", publish, undo="unpublish", writes=True)
    yield Call("unpublish", "Node", "NodeUnpublishVolume", unpublish)
    yield Call("unstage", "Node", "NodeUnstageVolume", unstage)
    yield Call("stage again", "Node", "NodeStageVolume", stage, undo="unstage")
    yield Call("publish read-only", "Node", "NodePublishVolume", readonly, undo="unpublish")
    yield Call("unpublish read-only", "Node", "NodeUnpublishVolume", unpublish)
    yield Call("unstage again", "Node", "NodeUnstageVolume", unstage)
    delete = csi_pb2.DeleteVolumeRequest(volume_id=VOLUME_ID)
    yield Call("delete", "Controller", "DeleteVolume", delete)
    if not rig.kind.block:
        context = {"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"}
        inline = csi_pb2.NodePublishVolumeRequest(
            volume_id=POD, target_path=target, volume_capability=capability, volume_context=context
        )
        yield Call("inline publish", "Node", "NodePublishVolume", inline, undo="inline unpublish", writes=True)
        gone = csi_pb2.NodeUnpublishVolumeRequest(volume_id=POD, target_path=target)
        yield Call("inline unpublish", "Node", "NodeUnpublishVolume", gone)


# The driver process


async def _serve(rig: Rig, call: Call, killer: Any, told: dict[str, Any], *, times: int) -> None:
    pool = make(parse(f"{rig.kind.pool}:{rig.home},name=p,size=300Mi,{rig.kind.options}"), disks=Disks())
    endpoint = DriverEndpoint(Driver("node-1", {"p": pool}, rig.folder / "state"), rig.folder / "csi.sock")
    await pool.open()
    told["opened"] = killer.count
    await endpoint.start()
    async with Channel(path=str(endpoint.socket)) as channel:
        method = getattr(getattr(csi_grpc, f"{call.service}Stub")(channel), call.method)
        bodies = []
        for _ in range(times):
            async with method.open() as stream:
                await stream.send_message(call.request, end=True)
                answer = await stream.recv_message()
            bodies.append(answer.SerializeToString(deterministic=True))
            told.setdefault("places", dict(killer.places))
    assert len(set(bodies)) == 1, f"asked twice, answered differently: {bodies}"
    told["body"] = bodies[0].hex()
    await endpoint.stop()
    await pool.close()


def _count_formats(told: dict[str, Any]) -> None:
    told["formats"] = 0
    original = imagefile.format_image

    def counting(*args: Any) -> None:
        told["formats"] += 1
        original(*args)

    imagestore.imagefile.format_image = counting  # type: ignore[attr-defined]


def _driver(rig: Rig, call: Call, *, at: int = 0, times: int = 1, trace: bool = True) -> Answer:
    """Run a driver process that is killed at line `at`, 0 for never; what it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told: dict[str, Any] = {}
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LONGEST)
            killer = rig.killers(at, TRACED)
            _count_formats(told)
            if not rig.warm:
                imagefile._templates = Templates()
            if trace:
                killer.start()
            asyncio.run(_serve(rig, call, killer, told, times=times))
        except BaseException as failure:
            told["failure"] = f"{type(failure).__name__}: {failure}"
        finally:
            sys.settrace(None)
            os.write(writing, json.dumps(told).encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        text = said.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"{call.name}: not answered in {LONGEST} s"
        return Answer(killed=True)
    assert text, f"{call.name}: ended with {status}"
    told = json.loads(text)
    assert "failure" not in told, f"{call.name}: {told['failure']}"
    return Answer(False, bytes.fromhex(told["body"]), told["opened"], told["places"], told["formats"])


# What is there


def _footprint(rig: Rig) -> object:
    """All that calls leave: mounts, loop devices, files and folders, groups."""
    inside = f"{rig.folder}/"
    mounts = [(m.target, m.fstype, "ro" in m.options.split(",")) for m in mount.mounts() if m.target.startswith(inside)]
    loops = [path for _, path in loop.attached() if path.startswith(inside)]
    entries = {}
    for folder in (rig.folder, rig.home, rig.folder / "state" / "inline"):
        with suppress(FileNotFoundError):
            entries[str(folder)] = sorted(os.listdir(folder))
    return sorted(mounts), sorted(loops), entries, _groups(rig)


def _groups(rig: Rig) -> int:
    """How many groups of subvolumes there are, once the kernel has cleaned up."""
    if rig.kind.pool != "btrfs":
        return 0
    at = os.open(rig.home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fs = btrfs.fsid(at)
        return len(btrfs.qgroups(fs)) if fs is not None and btrfs.has_quota(fs) else 0
    finally:
        os.close(at)


def _check_footprint(rig: Rig, name: str) -> None:
    """The kernel frees loop devices and groups a moment later."""
    for _ in range(500):
        if (found := _footprint(rig)) == rig.footprints[name]:
            return
        time.sleep(0.01)
    assert found == rig.footprints[name], "something is left, or missing"


def _write(rig: Rig, data: bytes) -> None:
    if rig.kind.block:
        fd = os.open(rig.target, os.O_WRONLY)
    else:
        fd = os.open(rig.target / "data", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _check_data(rig: Rig, data: bytes) -> None:
    """The data is seen wherever the volume is."""
    for place in (rig.staging, rig.target):
        if rig.kind.block:
            node = place / "device" if place is rig.staging else place
            if not node.exists() or not stat.S_ISBLK(os.stat(node).st_mode):
                continue
            found = _head(node, len(data))
        elif mount.is_mount(place):
            found = (place / "data").read_bytes()
        else:
            continue
        assert found == data, f"the data at {place} has changed"


def _head(path: Path, size: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


def _record(rig: Rig) -> Mapping[str, Any]:
    found = [json.loads(path.read_bytes()) for path in rig.home.glob("[!.]*.json")]
    return found[0] if found else {}


# Lives


def _same(rig: Rig, call: Call, answer: Answer) -> None:
    """The answer is the one of a life without kills; only when the volume was made differs."""
    got = type(rig.bodies[call.name]).FromString(answer.body)
    if isinstance(got, csi_pb2.CreateVolumeResponse):
        assert got.volume.volume_context.pop(CONTEXT_CREATED)
    assert got == rig.bodies[call.name]


def _warm_up(folder: Path) -> None:
    """Format a file here as the driver processes do, which are copies of this one."""
    length = FORMATS["ext4"].length(16 * MI)
    record = Record("warm", 16 * MI, uuid4(), length=length, sparse=True, fstype="ext4")
    imagefile.make(folder / "warm.img", record)
    fd = imagefile.open_image(folder / "warm.img")
    try:
        imagefile.format_image(fd, folder / "warm.img", record)
    finally:
        os.close(fd)
    imagefile.remove(folder / "warm.img")


def _learn(rig: Rig, responses: Mapping[str, type[Message]]) -> None:
    """Live without kills: which lines each call runs, what it answers, what it leaves."""
    for number in range(2):  # the first may still make things that stay, such as folders
        for call in _calls(rig):
            answer = _driver(rig, call)
            for phase in rig.opening, rig.calling:
                phase[call.name] = []
            for place, counts in answer.places.items():
                for phase, chosen in (
                    (rig.opening, [count for count in counts if count <= answer.opened]),
                    (rig.calling, [count for count in counts if count > answer.opened]),
                ):
                    # What touches the machine is killed more often than what only talks.
                    weight = 1 if "/csi/" in place else 3
                    phase[call.name] += [(place, chosen)] * weight if chosen else []
            body = responses[call.method].FromString(answer.body)
            if isinstance(body, csi_pb2.CreateVolumeResponse):
                del body.volume.volume_context[CONTEXT_CREATED]
            rig.bodies[call.name] = body
            if call.writes:
                _write(rig, b"learnt".ljust(4096))
            time.sleep(0.05 if number else 0)
            rig.footprints[call.name] = _footprint(rig)


class _Life:
    """A life with a kill in each call."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._calls = {call.name: call for call in _calls(rig)}
        self._chance = random.Random(seed)
        self._data = self._chance.randbytes(4096)
        self._written = False
        self._story: list[str] = []
        self._seed = seed

    def live(self) -> None:
        """Live it. Raises AssertionError with the story so far."""
        before = list(self._calls)[-1]
        self._rig.warm = self._chance.random() < 0.5
        try:
            for call in self._calls.values():
                self._one(call, before)
                before = call.name
        except BaseException as failure:
            failure.add_note("\n".join(self._story))
            failure.add_note(f"the same life again: --kills 1 --kill-seed {self._seed}")
            raise

    def _one(self, call: Call, before: str) -> None:
        rig = self._rig
        self._kill(call, rig.opening if self._chance.random() < 0.1 else rig.calling)
        if self._chance.random() < 0.1:
            self._kill(call, rig.opening)
        if call.undo and self._chance.random() < 0.25:
            self._story.append(f"undone by {call.undo}")
            rig.undone += 1
            self._ask(self._calls[call.undo], before)
            if self._chance.random() < 0.5:
                self._kill(call, rig.calling)
        self._ask(call, call.name)
        if call.writes:
            _write(rig, self._data)
            self._written = True
            self._check_data()
        if call.method == "DeleteVolume":
            self._written = False

    def _kill(self, call: Call, phase: Mapping[str, list[tuple[str, list[int]]]]) -> None:
        place, counts = self._chance.choice(phase[call.name])
        at = self._chance.choice(counts)
        self._story.append(f"{call.name} killed at {place} (line {at})")
        if _driver(self._rig, call, at=at).killed:  # how many lines there are varies a little: it may be past the last
            self._rig.kills += 1
            self._rig.points.add((call.name, place))

    def _ask(self, call: Call, state: str) -> None:
        """Make the call in a process that is not killed; then all is as after the call named `state`."""
        rig = self._rig
        formatted = _record(rig).get("state") == "formatted"
        seen = rig.staging / "seen"
        is_fresh = not self._written and not rig.kind.block and mount.is_mount(rig.staging)
        if is_fresh:  # somebody may have begun to use it
            seen.touch()
        answer = _driver(rig, call, times=2, trace=False)
        assert answer.formats <= (0 if formatted else 1), "formatted once more"
        if is_fresh and mount.is_mount(rig.staging):
            seen.unlink()
        _same(rig, call, answer)
        if self._written:
            self._check_data()
        _check_footprint(rig, state)

    def _check_data(self) -> None:
        _check_data(self._rig, self._data)


@pytest.fixture
def rig(
    request: pytest.FixtureRequest,
    real_folder: Path,
    line_killer: Callable[..., Any],
    need_program: Callable[[str], None],
) -> Rig:
    """Of the kind that the test is for."""
    rig = Rig(KINDS[request.param], real_folder, line_killer, home=real_folder / "pool")
    if rig.kind.pool == "btrfs":
        need_program("mkfs.btrfs")
        rig.home = _mounted_btrfs(real_folder) / "pool"
    return rig


def _mounted_btrfs(folder: Path) -> Path:
    disk, image = folder / "disk", folder / "disk.img"
    disk.mkdir()
    with open(image, "wb") as file:
        file.truncate(600 * MI)
    run(["mkfs.btrfs", "-q", str(image)])
    with open(image, "r+b") as file:
        attached = loop.attach(file.fileno(), str(image))
    try:
        mount.mount(attached.path, disk, "btrfs")
    finally:
        attached.close()
    return disk


@pytest.mark.parametrize("rig", KINDS, indirect=True)
def test_a_driver_killed_in_any_call_is_as_one_that_was_not(
    rig: Rig, request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    assert threading.active_count() == 1 or sys.version_info < (3, 12), "a process with threads must not fork"
    service = csi_pb2.DESCRIPTOR.services_by_name
    responses = {
        method.name: getattr(csi_pb2, method.output_type.name)
        for name in ("Controller", "Node")
        for method in service[name].methods
    }
    _warm_up(rig.folder)
    _learn(rig, responses)
    wanted, seed = request.config.getoption("--kills") / len(KINDS), request.config.getoption("--kill-seed")
    lives = 0
    while rig.kills < wanted:
        _Life(rig, seed + lives).live()
        lives += 1
    name = request.node.callspec.id
    tell(
        f"driver over {name}: {rig.kills} kills at {len(rig.points)} lines in {lives} lives, {rig.undone} calls undone"
        f" (--kill-seed {seed})"
    )
