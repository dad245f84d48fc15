"""A volume with content, its record, and what may happen to the record: any bit flipped, the end cut off, or a record of
an earlier moment in its place. Also run in guests, which have other kinds of pools."""

from __future__ import annotations

import hashlib
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tonnage.base.errors import BusyError, TonnageError
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.core import status
from tonnage.storage.pools.core.pool import Pool
from tonnage_box.testing.wait import eventually

MI = 1024**2
NAME = "v"
_MOST = 12 * MI


class Record(ABC):
    """Where the record of volume NAME is. Called while the pool is closed."""

    @abstractmethod
    def read(self) -> bytes:
        """As it is written."""

    @abstractmethod
    def write(self, text: bytes) -> bool:
        """Replace it; whether that could be done."""


class File(Record):
    """A file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes:
        return self.path.read_bytes()

    def write(self, text: bytes) -> bool:
        self.path.write_bytes(text)
        return True


class Life:
    """The life of a volume until it has been used, grown and used again. make: the pool, not yet open."""

    def __init__(self, folder: Path, record: Record, request: VolumeRequest) -> None:
        self.folder = folder
        self.record = record
        self.request = request
        self.moments: list[bytes] = []
        """The records that it had, the last of them now."""
        self._digest = ""

    def make(self) -> Pool:
        """The pool, not yet open."""
        raise NotImplementedError

    async def live(self) -> None:
        """Make the volume and fill it."""
        pool = self.make()
        await pool.open()
        await pool.create(self.request)
        await self._again(pool)
        await self._fill(pool, "first")
        await self._again(pool)
        if pool.features.expansion:
            await pool.growth.expand(NAME, self.request.size * 2)
            await self._again(pool)
            await self._fill(pool, "second")
            await self._again(pool)
        if "iops" in pool.features.modifiable:
            await pool.modify(NAME, {"iops": "500"})
            await self._again(pool)
        await self._stage(pool)
        self._digest = self._look()
        await pool.unstage(NAME, self.staging)
        await pool.close()

    async def _again(self, pool: Pool) -> None:
        """Remember the record, as the pool leaves it."""
        await pool.close()
        self.moments.append(self.record.read())
        await pool.open()

    @property
    def staging(self) -> Path:
        """Where the volume is staged."""
        return self.folder / "staging"

    async def _stage(self, pool: Pool) -> None:
        """Stage it, again while it is busy, as the kubelet does: a mount namespace that any process on this machine made
        has a copy of its last mount for a while."""

        async def is_staged() -> bool:
            try:
                await pool.stage(NAME, self.staging)
            except BusyError:
                return False
            return True

        await eventually(is_staged)

    async def _fill(self, pool: Pool, name: str) -> None:
        """Write most of what there is room for."""
        await self._stage(pool)
        size = (await pool.get(NAME)).size
        path = self.staging / ("device" if self.request.block else name)
        count = size if self.request.block else min(self.request.size * 3 // 4, _MOST)
        with path.open("r+b" if self.request.block else "wb") as file:
            file.write(random.Random(name).randbytes(count))
            os.fsync(file.fileno())
        await pool.unstage(NAME, self.staging)

    def _look(self) -> str:
        """What is in the staged volume."""
        found = hashlib.sha256()
        if self.request.block:
            found.update((self.staging / "device").read_bytes())
        for path in sorted(self.staging.iterdir()):
            if path.is_file():
                found.update(path.name.encode() + path.read_bytes())
        return found.hexdigest()

    async def start(self) -> bool:
        """A start with the record as it is: the volume is there with all its content, or damaged, left alone and
        reported. Whether it is damaged."""
        pool = self.make()
        await pool.open()
        try:
            damaged = await pool.damaged()
            names = [volume.name for volume in await pool.list()]
            if NAME not in names:
                await self._is_reported(pool, damaged)
                return True
            try:
                await self._stage(pool)
            except TonnageError:
                return False  # as one that is to grow and cannot; the content is looked at later
            assert self._look() == self._digest, "content is lost"
            await pool.unstage(NAME, self.staging)
            return False
        finally:
            await pool.close()

    async def _is_reported(self, pool: Pool, damaged: object) -> None:
        seen = await status.read(pool)
        assert seen.capacity is not None
        said = " ".join((*seen.abnormal.values(), *seen.lacks))
        assert "record is damaged" in said, "not reported"
        assert damaged or seen.lacks
        assert "put a copy" in said or "lvchange" in said
        for call in (pool.get(NAME), pool.stage(NAME, self.staging), pool.delete(NAME)):
            with pytest.raises(TonnageError, match="damaged"):
                await call
        with pytest.raises(TonnageError):
            await pool.create(self.request)

    async def survives(self, text: bytes, what: str, *, must_be_damaged: bool = True) -> bool:
        """Start with another text for a record; whether that could be. Raises AssertionError when a byte is lost."""
        good = self.record.read()
        if not self.record.write(text):
            return False
        written = self.record.read()  # LVM has no order of tags
        try:
            is_damaged = await self.start()
            assert is_damaged or not must_be_damaged, "believed"
            if is_damaged:
                assert self.record.read() == written, "touched"
            self.record.write(good)
            assert not await self.start(), "damaged for good"
        except BaseException as failure:
            failure.add_note(f"the record was changed: {what}")
            raise
        return True


def changes(text: bytes) -> Iterator[tuple[str, bytes]]:
    """All texts with one bit flipped, and all that are cut off."""
    for at in range(len(text)):
        for bit in range(8):
            yield f"bit {bit} of byte {at}", text[:at] + bytes([text[at] ^ 1 << bit]) + text[at + 1 :]
        yield f"cut to {at} bytes", text[:at]


def sample(text: bytes, count: int) -> Sequence[tuple[str, bytes]]:
    """That many of them, the same ones each time; 0: all."""
    found = list(changes(text))
    return random.Random(1).sample(found, min(count, len(found))) if count else found
