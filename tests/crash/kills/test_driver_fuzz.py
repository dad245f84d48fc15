"""Malformed requests at the driver's socket, over a pool with real mounts: random bytes on all levels, random messages,
huge and deep fields, paths that lead elsewhere by symlinks. The code is the right one, the driver goes on, and nothing
is touched but what the request may touch. 100,000 of them: `pytest tests/crash/kills -k fuzz --fuzz 100000`.

Paths are of this test's folder only: what a caller names outside is that caller's own (it is the kubelet).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from tests.unit.csi.full_client import FullCsiClient

from tonnage.csi._proto import csi_pb2, inventory_pb2
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError, label_of
from tonnage.host import mount
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse

pytestmark = [pytest.mark.real, pytest.mark.campaign]

MI = 1024**2
ANSWER_SECONDS = 60
INLINE = {"csi.storage.k8s.io/ephemeral": "true", "size": "8Mi"}
RIGHT = frozenset(Code) - {Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS, Code.CANCELLED, Code.DEADLINE_EXCEEDED}
"""Codes that a request which can be read may be answered with: none that means a fault of the driver."""
METHODS = {
    f"/{service.full_name}/{method.name}": getattr(module, method.input_type.name)
    for module in (csi_pb2, inventory_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
NODE = [path for path in METHODS if "/csi.v1.Node/" in path]
TEXTS = (
    "", "v", "p/v0", "p/v1", "p/v2", "p/nothing", "q/v0", "p/", "/", "//", "p/../p/v0", "p/.", "p/..", "..", ".", "p/v0/x",
    "p/" + "x" * 126, "x" * 128, "x" * 129, "x" * 70_000, "\0", "a\0b", "\x1b[31m", "é" * 64, "\U0001f600", "\u202e", "%s%n",
    "$(reboot)", "csi-0123", "n--0123456789abcdef0123456789abcdef", ".tonnage-pool", "v0.json", "-v", "ext4", "xfs", "vfat",
    "16Mi", "1e400", "-1", "0x10", "true", "ro", "suid,dev", "loop", "context=x", "dev", "noexec", "pool", "kind", "size",
    "erase", "zero", "csi.storage.k8s.io/ephemeral", "csi.storage.k8s.io/fstype", "tonnage.dev/created",
)  # fmt: skip


class _Raw(CodecBase):
    """Messages are bytes already."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


@dataclass(frozen=True)
class Places:
    """Folders of the test. outside: what no request may touch, though symlinks lead there."""

    folder: Path

    @property
    def allowed(self) -> Path:
        """Where requests have their paths."""
        return self.folder / "allowed"

    @property
    def outside(self) -> Path:
        """Where they must not come."""
        return self.folder / "outside"

    def plant(self) -> None:
        """Make both, with the tricks of a hostile pod; again whenever a request has taken one away."""
        for folder in (self.allowed, self.outside, self.outside / "sub", self.allowed / "full"):
            folder.mkdir(exist_ok=True)
        for file in (self.outside / "file", self.allowed / "full" / "file", self.allowed / "file"):
            if not os.path.lexists(file):
                file.write_text("precious")
        with suppress(FileExistsError):
            (self.outside / "empty").touch(exist_ok=False)
        links = {"link": self.outside, "linkfile": self.outside / "file", "dangling": self.outside / "new"}
        links |= {
            "up": Path("../outside"),
            "loop": Path("loop"),
            "self": Path("."),
            "linkempty": self.outside / "empty",
        }
        for name, leads in links.items():
            if not os.path.lexists(self.allowed / name):
                (self.allowed / name).symlink_to(leads)

    def paths(self) -> list[str]:
        """Good and bad ones."""
        plain = ["s0", "s1", "t0", "t1", "missing/t", "full", "file", "file/x", "x" * 255, "x" * 256, "a b\nc", "é"]
        tricks = ["link", "linkfile", "linkempty", "dangling", "loop", "up", "link/sub", "link/file", "link/empty"]
        tricks += ["link/new", "up/sub", "up/empty", "dangling/x", "loop/x", "./t0", "t0/", "t0//", "../outside/sub"]
        tricks += [
            "s0/device",
            "s0/../../outside",
            "t0/./.",
            "\0",
            "t0\0",
            "self/self/t0",
            "link/sub/x/y",
            "self/up/sub/x",
        ]
        return [f"{self.allowed}/{name}" for name in plain + tricks]

    def look(self) -> object:
        """All there is to see outside."""
        found = {}
        for path in sorted([self.outside, *self.outside.rglob("*")]):
            status = os.lstat(path)
            content = path.read_bytes() if path.is_file() else b""
            found[str(path)] = status.st_ino, status.st_mode, status.st_uid, status.st_mtime_ns, content
        return found, [entry.target for entry in mount.mounts() if entry.target.startswith(f"{self.outside}")]


class Fuzz:
    """Makes requests. The same seed makes the same."""

    def __init__(self, places: Places, seed: int) -> None:
        self._places = places
        self._paths = places.paths()
        self.chance = random.Random(seed)

    def request(self) -> tuple[str, bytes]:
        """A method and a body."""
        chance = self.chance
        while True:
            path = chance.choice(NODE if chance.random() < 0.5 else list(METHODS))
            kind = chance.choices(("valid", "random", "bytes", "noise", "huge", "deep"), (35, 30, 20, 8, 4, 3))[0]
            message = self._valid(path) if kind != "random" else METHODS[path]()
            if kind == "random" or (kind == "valid" and chance.random() < 0.6):
                self._fill(message, depth=0, share=0.5 if kind == "random" else 0.1)
            body = message.SerializeToString(deterministic=True)
            if kind in ("bytes", "noise", "huge", "deep"):
                body = getattr(self, f"_{kind}")(body)
            if self._is_here(path, body):
                return path, body

    def _is_here(self, path: str, body: bytes) -> bool:
        """Whether all paths that can be read in it are of this test's folder, or not absolute."""
        try:
            message = METHODS[path].FromString(body)
        except DecodeError:
            return True
        texts = [str(getattr(message, field.name)) for field in message.DESCRIPTOR.fields if "path" in field.name]
        return all(text.startswith(f"{self._places.allowed}/") or not text.startswith("/") for text in texts)

    def _valid(self, path: str) -> Message:
        """A request that succeeds if its volume is in the right state."""
        chance, allowed = self.chance, self._places.allowed
        mount_or_block: dict[str, Any] = {"mount": csi_pb2.VolumeCapability.MountVolume()}
        number = chance.randrange(3)
        if number == 2:
            mount_or_block = {"block": csi_pb2.VolumeCapability.BlockVolume()}
        mode = csi_pb2.VolumeCapability.AccessMode(mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)
        capability = csi_pb2.VolumeCapability(access_mode=mode, **mount_or_block)
        values: dict[str, Any] = {
            "name": f"v{number}",
            "volume_id": f"p/v{number}",
            "source_volume_id": f"p/v{chance.randrange(3)}",
            "snapshot_id": f"p/v{chance.randrange(3)}",
            "mutable_parameters": chance.choice(
                ({}, {"iops": "100"}, {"bandwidth": "1Mi"}, {"erase": "zero"}, {"erase": "x"})
            ),
            "capacity_range": csi_pb2.CapacityRange(required_bytes=8 * MI),
            "volume_capability": capability,
            "volume_capabilities": [capability],
            "staging_target_path": f"{allowed}/s{number}" if chance.random() < 0.7 else chance.choice(self._paths),
            "target_path": f"{allowed}/t{number}" if chance.random() < 0.5 else chance.choice(self._paths),
            "volume_path": f"{allowed}/t{number}" if chance.random() < 0.5 else chance.choice(self._paths),
        }
        if path.endswith("ExpandVolume"):
            values["capacity_range"] = csi_pb2.CapacityRange(required_bytes=chance.choice((8, 9, 12)) * MI)
        if path.endswith("CreateVolume") and chance.random() < 0.2:
            kinds = csi_pb2.VolumeContentSource
            snapshot = kinds.SnapshotSource(snapshot_id=f"p/v{chance.randrange(3)}")
            values["volume_content_source"] = kinds(snapshot=snapshot)
        if path.endswith("lishVolume") and chance.random() < 0.3:
            values["volume_id"] = "csi-0123"
            values["volume_context"] = INLINE
        kind: type[Message] = METHODS[path]
        return kind(**{key: value for key, value in values.items() if key in kind.DESCRIPTOR.fields_by_name})

    def _fill(self, message: Message, *, depth: int, share: float) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.chance.random() < share:
                with suppress(ValueError, TypeError):  # such as a lone surrogate
                    self._set(message, field, depth, share)

    def _set(self, message: Message, field: Any, depth: int, share: float) -> None:
        chance, value = self.chance, getattr(message, field.name)
        if field.message_type is None:
            if field.is_repeated:
                value.extend(self._scalar(field) for _ in range(chance.choice((0, 1, 2, 100))))
            else:
                setattr(message, field.name, self._scalar(field))
        elif field.message_type.GetOptions().map_entry:
            self._set_map(value, field.message_type)
        elif depth < 5:
            inner = [value.add() for _ in range(chance.choice((1, 2, 30)))] if field.is_repeated else [value]
            for item in inner:
                if not field.is_repeated:
                    item.SetInParent()
                self._fill(item, depth=depth + 1, share=share)

    def _set_map(self, value: Any, entry: Descriptor) -> None:
        for _ in range(self.chance.choice((1, 2, 5, 300))):
            key, content = self._scalar(entry.fields_by_name["key"]), entry.fields_by_name["value"]
            if content.message_type is None:
                value[key] = self._scalar(content)
            else:
                value[key].SetInParent()

    def _scalar(self, field: FieldDescriptor) -> Any:
        chance = self.chance
        if field.type == FieldDescriptor.TYPE_STRING:
            if "path" in field.name or chance.random() < 0.05:
                return chance.choice(self._paths) if chance.random() < 0.9 else chance.choice(("", "a", "../x", "a/b"))
            return chance.choice(TEXTS) if chance.random() < 0.9 else self._text()
        if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(chance.choice((0, 1, 100)))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        if field.type == FieldDescriptor.TYPE_ENUM:
            return chance.choice((-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 99, 2**31 - 1))
        limit = 31 if field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32) else 63
        return chance.choice((0, 1, -1, 4096, 8 * MI, 8 * MI + 1, 2**limit - 1, -(2**limit), chance.getrandbits(limit)))

    def _text(self) -> str:
        chance = self.chance
        return "".join(chr(chance.choice((chance.randrange(128), chance.randrange(0xD800)))) for _ in range(20))

    def _bytes(self, body: bytes) -> bytes:
        """Change some bytes: turned, left out, doubled, put in."""
        chance, changed = self.chance, bytearray(body)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(changed) + 1)
            how = chance.randrange(4)
            if how == 0:
                changed[at:at] = chance.randbytes(chance.randint(1, 9))
            elif how == 1:
                del changed[at : at + chance.randint(1, 9)]
            elif how == 2:
                changed[at:at] = changed[max(0, at - 20) : at]
            elif at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
        return bytes(changed)

    def _noise(self, _body: bytes) -> bytes:
        return self.chance.randbytes(self.chance.choice((1, 2, 10, 1000, 100_000)))

    def _huge(self, body: bytes) -> bytes:
        """A field of 0.1 to 3.5 MB: the first ones are ids and names, the last is unknown."""
        field, size = self.chance.choice((1, 2, 3, 4, 15)), self.chance.choice((100_000, 1_000_000, 3_500_000))
        return body + bytes((field << 3 | 2,)) + _varint(size) + b"x" * size

    def _deep(self, body: bytes) -> bytes:
        """Messages in messages in messages; or groups, which nobody uses."""
        levels, field = self.chance.choice((50, 101, 3000)), self.chance.choice((1, 2, 3, 4, 5, 15))
        if self.chance.random() < 0.5:
            return body + bytes((field << 3 | 3,)) * levels + bytes((field << 3 | 4,)) * levels
        inner = b""
        for _ in range(levels):
            inner = bytes((field << 3 | 2,)) + _varint(len(inner)) + inner
        return body + inner

    def stream(self) -> bytes:
        """What comes over a connection that does not speak gRPC, or stops speaking it."""
        chance = self.chance
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        noise = chance.randbytes(chance.choice((0, 1, 9, 300, 20_000)))
        if chance.random() < 0.3:
            return chance.choice((noise, b"GET / HTTP/1.1\r\n\r\n", preface[: chance.randrange(24)], b"\0" * 4096))
        frames = b"".join(self._frame() for _ in range(chance.randint(0, 6)))
        return preface + (_frame(4, 0, 0, b"") if chance.random() < 0.8 else b"") + frames + noise

    def _frame(self) -> bytes:
        chance = self.chance
        payload = chance.randbytes(chance.choice((0, 1, 4, 8, 100, 17_000)))
        return _frame(chance.randrange(12), chance.randrange(256), chance.choice((0, 1, 2, 3, 2**31 - 1)), payload)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


@dataclass
class Rig:
    """The driver, and what it complained about."""

    places: Places
    socket: Path
    faults: list[str]

    async def ask(self, channel: Channel, path: str, body: bytes) -> Code:
        """Send a request as it is."""
        method: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(channel, path, bytes, bytes)
        try:
            await method(body, timeout=ANSWER_SECONDS)
        except GRPCError as failure:
            return failure.status
        return Code.OK

    async def babble(self, stream: bytes) -> None:
        """Connect and say that."""
        reader, writer = await asyncio.open_unix_connection(str(self.socket))
        with suppress(OSError):
            writer.write(stream)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), ANSWER_SECONDS)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class _Faults(logging.Handler):
    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        self._faults.append(self.format(record))


@pytest.fixture
def faults() -> Iterator[list[str]]:
    """Everything that is logged as an error meanwhile."""
    found: list[str] = []
    handler = _Faults(found)
    logging.getLogger().addHandler(handler)
    yield found
    logging.getLogger().removeHandler(handler)


@pytest.fixture
async def rig(real_folder: Path, faults: list[str]) -> AsyncIterator[Rig]:
    """A driver over an image pool."""
    places = Places(real_folder)
    places.plant()
    pool = make(parse(f"image:{real_folder / 'pool'},name=p,size=200Mi,sparse=yes,overcommit=yes"), disks=Disks())
    await pool.open()
    async with DriverEndpoint(Driver("node-1", {"p": pool}, real_folder / "state"), real_folder / "csi.sock") as served:
        yield Rig(places, served.socket, faults)
    await pool.close()


async def test_malformed_requests(rig: Rig, request: pytest.FixtureRequest, tell: Callable[[str], None]) -> None:
    wanted, seed = request.config.getoption("--fuzz"), request.config.getoption("--fuzz-seed")
    places, fuzz, codes = rig.places, Fuzz(rig.places, seed), Counter[str]()
    before = places.look()
    async with FullCsiClient(rig.socket) as client, Channel(path=str(rig.socket), codec=_Raw()) as channel:
        keep = await _keep(client, places)
        for number in range(wanted):
            if number % 20 == 19:
                stream = fuzz.stream()
                await rig.babble(stream)
                codes["not gRPC"] += 1
                continue
            path, body = fuzz.request()
            try:
                code = await rig.ask(channel, path, body)
                assert code in RIGHT if _reads(path, body) else code is Code.INTERNAL, f"answered {label_of(code)}"
                codes[label_of(code)] += 1
                assert not rig.faults, "\n".join(rig.faults)
                if number % 10 == 0:
                    assert places.look() == before, "something outside was touched"
                    places.plant()
            except (AssertionError, StreamTerminatedError, ProtocolError, OSError) as failure:
                failure.add_note(f"request {number} of --fuzz-seed {seed}: {path}\n{_shown(path, body)}")
                raise
        assert places.look() == before
        assert not rig.faults
        assert await client.probe()
        assert keep.read_text() == "kept"
    tell(f"malformed requests: {wanted} (--fuzz-seed {seed}), answered {dict(codes.most_common())}")


class Swapper(threading.Thread):
    """A hostile pod: exchanges folders for symlinks and back, as fast as it can."""

    def __init__(self, places: Places, names: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._names, self._allowed, self._outside = names, places.allowed, places.outside
        self.ended = threading.Event()
        self.swaps = 0
        for name in names:
            (self._allowed / name).mkdir()
            (self._allowed / f"{name}.link").symlink_to(places.outside)

    def run(self) -> None:
        while not self.ended.wait(0.0005):  # else Python would hardly let the driver run
            for name in self._names:
                path, link, aside = (self._allowed / text for text in (name, f"{name}.link", f"{name}.aside"))
                for old, new in ((path, aside), (link, path), (path, link), (aside, path)):
                    with suppress(OSError):  # a mount in it cannot be moved
                        os.rename(old, new)
                        self.swaps += 1

    def __enter__(self) -> Swapper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


@pytest.mark.parametrize("kind", ["image", "fake"])
async def test_paths_exchanged_meanwhile(
    real_folder: Path, kind: str, request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    """Staging, target and volume paths, their folders and those above are exchanged for symlinks while calls run."""
    places, wanted = Places(real_folder), request.config.getoption("--fuzz") // 50
    places.plant()
    where = "image:" + str(real_folder / "pool") if kind == "image" else "fake"
    options = ",sparse=yes,overcommit=yes" if kind == "image" else ""
    pool = make(parse(f"{where},name=p,size=200Mi{options}"), disks=Disks())
    await pool.open()
    chance, codes = random.Random(request.config.getoption("--fuzz-seed")), Counter[str]()
    driver = Driver("n", {"p": pool}, real_folder / "state", roots=(places.allowed,))
    swapped = ("swap", "swap/in", "swap2")
    async with DriverEndpoint(driver, real_folder / "csi.sock") as served, FullCsiClient(served.socket) as client:
        uses = {"p/fs": VolumeCapability(), "p/raw": VolumeCapability(block=True)}
        for vid, use in uses.items():
            await client.create_volume(vid.removeprefix("p/"), 8 * MI, [use])
        with Swapper(places, ("swap", "swap2")) as swapper:
            before = places.look()
            for _ in range(wanted):
                vid, staging, target = chance.choice(list(uses)), *(_swapped(places, chance, swapped) for _ in range(2))
                calls = (
                    client.stage(vid, staging, uses[vid]), client.publish(vid, target, uses[vid], staging=staging),
                    client.unpublish(vid, target), client.unstage(vid, staging), client.volume_stats(vid, target),
                    client.expand_on_node(vid, target, staging=staging),
                    client.publish("csi-1", target, uses["p/fs"], context=INLINE), client.unpublish("csi-1", target),
                )  # fmt: skip
                for call in calls:
                    codes[await _answer(call)] += 1
                assert places.look() == before, "something outside was touched"
            swaps = swapper.swaps
        assert places.look() == before
    await pool.close()
    tell(
        f"paths exchanged meanwhile ({kind}): {wanted * 8} calls, {swaps} exchanges, answered {dict(codes.most_common())}"
    )


async def _answer(call: Awaitable[Any]) -> str:
    """The code; no exception that nobody had foreseen."""
    try:
        await call
    except CsiError as failure:
        if "Error: " in failure.message:
            raise
        return label_of(failure.code)
    return "OK"


def _swapped(places: Places, chance: random.Random, folders: Sequence[str]) -> Path:
    folder = chance.choice(folders)
    return (
        places.allowed / folder / chance.choice(("s", "t", "sub", "empty", "deep/t"))
        if chance.random() < 0.9
        else places.allowed / folder
    )


def _reads(path: str, body: bytes) -> bool:
    try:
        METHODS[path].FromString(body)
    except DecodeError:
        return False
    return True


def _shown(path: str, body: bytes) -> str:
    try:
        return str(METHODS[path].FromString(body))[:2000]
    except DecodeError:
        return body[:500].hex()


async def _keep(client: FullCsiClient, places: Places) -> Path:
    """A volume in use, which no request is about."""
    capability = VolumeCapability()
    await client.create_volume("keep", 8 * MI, [capability])
    staging, target = places.folder / "keep-staging", places.folder / "keep"
    await client.stage("p/keep", staging, capability)
    await client.publish("p/keep", target, capability, staging=staging)
    (target / "file").write_text("kept")
    return target / "file"
