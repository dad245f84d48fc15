"""Durability: what has been answered is there, whatever happened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import (
    ApiGoneError,
    BusyError,
    ExhaustedError,
    PreconditionError,
    TonnageError,
    UnavailableError,
)
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.apiserver.storage.store import ObjectKey

WRITER = """
import asyncio, sys
from pathlib import Path
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.apiserver.storage.store import ObjectKey

async def write(store, writer):
    n = 0
    while True:
        name = f"{writer}-{n}"
        await store.put(ObjectKey("things", "a", name), {"metadata": {"name": name}}, 0)
        sys.stdout.write(name + "\\n")
        sys.stdout.flush()
        n += 1

async def main():
    store = SqliteStore(Path(sys.argv[1]), lambda collection, obj: {})
    await store.start()
    await asyncio.gather(*(write(store, w) for w in range(8)))

asyncio.run(main())
"""


def no_fields(collection: str, obj: dict[str, Any]) -> Mapping[str, str]:
    return {}


def thing(name: str, size: int = 0) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": "x" * size}


def key(name: str) -> ObjectKey:
    return ObjectKey("things", "a", name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path, no_fields)
    await store.start()
    return store


async def test_objects_and_revisions_survive(path: Path) -> None:
    store = await opened(path)
    first = await store.put(key("x"), thing("x"), 0)
    last = await store.remove(key("x"), thing("x"), first.revision)
    kept = await store.put(key("y"), thing("y"), 0)
    await store.stop()
    again = await opened(path)
    assert again.get(key("x")) is None
    record = again.get(key("y"))
    assert record is not None
    assert (record.data, record.revision) == (kept.data, kept.revision)
    assert again.revision == kept.revision > last.revision
    with pytest.raises(ApiGoneError):
        again.since("things", first.revision)
    await again.stop()


async def test_a_deletion_keeps_the_revision(path: Path) -> None:
    store = await opened(path)
    first = await store.put(key("x"), thing("x"), 0)
    gone = await store.remove(key("x"), thing("x"), first.revision)
    await store.stop()
    again = await opened(path)
    assert again.revision == gone.revision
    await again.stop()


async def test_only_one_process_at_a_time(path: Path) -> None:
    store = await opened(path)
    with pytest.raises(BusyError, match=f"pid {os.getpid()}"):
        await opened(path)
    await store.stop()
    await (await opened(path)).stop()


async def test_files_are_private(path: Path) -> None:
    store = await opened(path)
    await store.put(key("x"), thing("x"), 0)
    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in path.parent.iterdir()}
    await store.stop()
    assert set(modes.values()) == {0o600}, modes


async def test_a_foreign_database_is_rejected(path: Path) -> None:
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    with pytest.raises(PreconditionError, match="another program"):
        await opened(path)


async def test_a_file_that_is_no_database_is_rejected(path: Path) -> None:
    path.write_bytes(b"not a database, just some text that is long enough" * 100)
    with pytest.raises(PreconditionError, match="not a database"):
        await opened(path)


@pytest.mark.parametrize("harm", ["cut short", "overwritten"])
@pytest.mark.parametrize("killed", [False, True])
async def test_a_damaged_database_is_rejected_and_left_alone(path: Path, harm: str, killed: bool) -> None:
    """With its log folded in, as after an end in order, and with it beside, as after a kill."""
    store = SqliteStore(path, no_fields)
    await store.start()
    for n in range(40):
        await store.put(ObjectKey("things", "a", f"x{n}"), thing(f"x{n}", 3000), 0)
        if n == 20:
            assert store._file is not None
            store._file._connection.execute("PRAGMA wal_checkpoint")
    files = [path, path.with_name(path.name + "-wal")]
    kept = [file.read_bytes() for file in files]
    await store.stop()
    if killed:
        for file, data in zip(files, kept, strict=True):
            file.write_bytes(data)
    whole = path.read_bytes()
    path.write_bytes(whole[:10_000] if harm == "cut short" else whole[:8192] + b"\xff" * 16384 + whole[24576:])
    before = [file.read_bytes() if file.exists() else b"" for file in files]
    with pytest.raises(
        UnavailableError, match=r"is damaged \(.*\): restore it from a copy, or .* `tonnage up --recover`"
    ):
        await SqliteStore(path, no_fields).start()
    assert [file.read_bytes() if file.exists() else b"" for file in files] == before


async def written(path: Path, *, killed: bool) -> tuple[dict[Path, bytes], list[dict[str, bytes]]]:
    """The files of a store, and what it held after each of its writes."""
    store = await opened(path)
    held: list[dict[str, bytes]] = [{}]
    for n in range(60):
        record = await store.put(key(f"x{n}"), thing(f"x{n}", 37 * n), 0)
        held.append({**held[-1], record.key.name: record.data})
        if n == 30:
            assert store._file is not None
            store._file._connection.execute("PRAGMA wal_checkpoint")
    files = [path, path.with_name("state.db-wal")]
    kept = {file: file.read_bytes() for file in files}
    await store.stop()
    return (kept if killed else {path: path.read_bytes()}), held


async def rejection(store: SqliteStore) -> str:
    try:
        await store.start()
    except TonnageError as failure:
        return str(failure)
    return ""


def laid(folder: Path, files: Mapping[Path, bytes]) -> None:
    for file in folder.iterdir():
        file.unlink()
    for file, data in files.items():
        file.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["flip", "cut", "zeros"])
@pytest.mark.parametrize("killed", [False, True])
async def test_each_damage_is_reported_or_changed_nothing_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str, killed: bool
) -> None:
    """Sampled over database and log. A log's last transaction may be missing: a power cut leaves the same bytes."""
    for size, few in (("_LOG_BYTES", 1 << 16), ("_STEP", 1 << 12), ("_PIECE", 1 << 12), ("_PIECES", 4)):
        monkeypatch.setattr(f"tonnage_box.apiserver.storage.sqlite.{size}", few)
    folder = tmp_path / "s"
    folder.mkdir()
    files, held = await written(folder / "state.db", killed=killed)
    dice, rejected = random.Random(f"{harm} {killed}"), 0
    for _ in range(120):
        file = dice.choice(sorted(files))
        data = bytearray(files[file])
        at = dice.randrange(120) if dice.random() < 0.25 else dice.randrange(len(data))
        if harm == "flip":
            data[at] ^= 1 << dice.randrange(8)
        elif harm == "cut":
            del data[at:]
        else:
            data[at : at + 512] = bytes(len(data[at : at + 512]))
        laid(folder, {**files, file: bytes(data)})
        before = {f.name: f.read_bytes() for f in folder.iterdir()}
        store = SqliteStore(folder / "state.db", no_fields, used=True)
        failure = await rejection(store)
        if failure:
            rejected += 1
            assert re.search(r"restore it from a copy|use the version that made it", failure), failure
            after = {f.name: f.read_bytes() for f in folder.iterdir() if f.name != "state.db.lock"}
            assert after == before
        else:
            found = {record.key.name: record.data for record in store.records("things")}
            assert found in ((held[-1],) if file.name == "state.db" else _ends(held, cut=harm == "cut")), (file, at)
            await store.stop()
    assert rejected > 15


def _ends(held: list[dict[str, bytes]], *, cut: bool) -> list[dict[str, bytes]]:
    return held if cut else held[-2:]


def _ends_of_transactions(log: bytes) -> list[int]:
    """Where the pages are with which the transactions of a write-ahead log end, in SQLite's format."""
    page = int.from_bytes(log[8:12], "big")
    frames = range(32, len(log) - page, 24 + page)
    return [at + 24 for at in frames if log[at + 8 : at + 16] == log[16:24] and any(log[at + 4 : at + 8])]


async def test_of_a_log_only_its_last_transaction_may_be_torn(path: Path) -> None:
    """A power cut leaves it so, and nobody had its answer; of an earlier one somebody had."""
    files, held = await written(path, killed=True)
    log = path.with_name("state.db-wal")
    ends = _ends_of_transactions(files[log])
    for end, torn in ((ends[-1], True), (ends[-2], False)):
        data = bytearray(files[log])
        data[end + 100] ^= 1
        laid(path.parent, {**files, log: bytes(data)})
        store = SqliteStore(path, no_fields, used=True)
        if torn:
            await store.start()
            assert {record.key.name: record.data for record in store.records("things")} == held[-2]
            await store.stop()
        else:
            assert "transactions in state.db-wal after frame" in await rejection(store)


@pytest.mark.parametrize("left", ["missing", "no bytes", "no tables", "no rows"])
async def test_a_used_database_that_is_gone_is_rejected_until_it_is_to_be_recovered(path: Path, left: str) -> None:
    if left == "no rows":
        await (await opened(path)).stop()
    elif left == "no tables":
        with sqlite3.connect(path) as empty:
            empty.execute("PRAGMA user_version=7")
        empty.close()
    elif left == "no bytes":
        path.touch()
    before = {f.name: f.read_bytes() for f in path.parent.iterdir()}
    for _ in range(2):
        with pytest.raises(
            UnavailableError, match=r"is (missing|empty), and its folder had a cluster: restore it from a copy"
        ):
            await SqliteStore(path, no_fields, used=True).start()
        after = {f.name: f.read_bytes() for f in path.parent.iterdir() if f.name != "state.db.lock"}
        assert after == {name: data for name, data in before.items() if name != "state.db.lock"}
    for recover in (True, True, False):  # the second time there is nothing to recover
        store = SqliteStore(path, no_fields, used=True, recover=recover)
        await store.start()
        if store.get(key("x")) is None:
            await store.put(key("x"), thing("x"), 0)
        assert store.count("things") == 1
        await store.stop()


async def test_recovering_keeps_the_damaged_files(path: Path) -> None:
    files, _ = await written(path, killed=True)
    damaged = {**files, path: files[path][:5000]}
    for number in (1, 2):
        laid(path.parent, {**damaged, **{f: f.read_bytes() for f in path.parent.glob("*.damaged-*")}})
        store = SqliteStore(path, no_fields, used=True, recover=True)
        await store.start()
        assert store.count("things") == 0
        await store.stop()
        kept = path.with_name(f"state.db.damaged-{number}")
        assert kept.read_bytes() == damaged[path]
        assert kept.with_name(kept.name + "-wal").read_bytes() == damaged[path.with_name("state.db-wal")]


async def test_a_database_without_checksums_gets_them(path: Path) -> None:
    files, held = await written(path, killed=False)
    laid(path.parent, files)
    with sqlite3.connect(path) as old:
        old.execute("ALTER TABLE objects DROP COLUMN checksum")
        old.execute("PRAGMA user_version=1")
    old.close()
    for _ in range(2):
        store = await opened(path)
        assert {record.key.name: record.data for record in store.records("things")} == held[-1]
        await store.stop()
    with sqlite3.connect(path) as now:
        assert now.execute("SELECT count(*) FROM objects WHERE checksum IS NULL").fetchone() == (0,)
    now.close()


async def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError):
        await opened(path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture
def small_disk(real_folder: Path) -> Path:
    """An ext4 of 64 MiB."""
    image, place = real_folder / "disk", real_folder / "mnt"
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    place.mkdir()
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    return place


def fill(disk: Path) -> Path:
    """Take all blocks of a disk, to the last."""
    other = disk / "other"
    with open(other, "ab", buffering=0) as file:
        for size in (1 << 20, 1024):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
        assert os.statvfs(disk).f_bavail < 4
    return other


def pieces(store: SqliteStore) -> int:
    assert store._file is not None
    return store._file._pieces


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
async def test_on_a_full_disk_deletions_status_and_events_go_on(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setattr("tonnage_box.apiserver.storage.sqlite._PIECES", 4)
    monkeypatch.setattr("tonnage_box.apiserver.storage.sqlite._FOR_REMOVALS", 1)
    path = small_disk / "state.db"
    store = await opened(path)
    made = {n: await store.put(key(f"x{n}"), thing(f"x{n}", 3000), 0) for n in range(400)}
    if killed:  # as the files are after a kill, with the log beside
        kept = {f: f.read_bytes() for f in small_disk.glob("state.db*")}
        await store.stop()
        for file, data in kept.items():
            file.write_bytes(data)
        store = await opened(path)
    assert path.with_name("state.db-wal").stat().st_blocks * 512 >= 8 << 20
    assert pieces(store) == 4
    other = fill(small_disk)

    async def vital(n: int) -> None:
        """A pod's end: its status, the timestamp of its deletion, its removal; and an Event."""
        before = made.pop(n)
        status = {**thing(f"x{n}", 3000), "status": "s" * 5000}
        changed = await store.put(key(f"x{n}"), status, before.revision)
        slow = await store.put(key(f"x{n}"), {**status, "deletionTimestamp": "now"}, changed.revision)
        await store.put(ObjectKey("events", "a", f"e{n}"), thing(f"e{n}", 500), 0)
        await store.remove(key(f"x{n}"), status, slow.revision)

    rejections = 0
    for n in range(100):
        try:
            await store.put(key(f"new{n}"), thing(f"new{n}", 20000), 0)
        except ExhaustedError:
            rejections += 1
        await vital(n)
    assert rejections > 50
    for n in range(100, 120):  # other requests of the same batch do not stop it
        large = (store.put(key(f"big{n}-{m}"), thing("big", 1 << 19), 0) for m in range(3))
        await asyncio.gather(vital(n), *large, return_exceptions=True)
        assert store.get(key(f"x{n}")) is None
    for n in range(1000, 2600, 16):  # more than the reserve has: the oldest give way
        names = [f"e{n + m}" for m in range(16)]
        await asyncio.gather(*(store.put(ObjectKey("events", "a", name), thing(name, 800), 0) for name in names))
    assert 0 < pieces(store) < 4
    await vital(399)

    other.unlink()
    await store.put(key("after"), thing("after", 100_000), 0)
    assert pieces(store) == 4
    left = {record.key for collection in ("things", "events") for record in store.records(collection)}
    await store.stop()
    again = await opened(path)
    assert {record.key for collection in ("things", "events") for record in again.records(collection)} == left
    await again.stop()


@pytest.mark.real
async def test_a_full_disk_rejects_the_write_and_loses_nothing(small_disk: Path) -> None:
    path = small_disk / "state.db"
    store = await opened(path)
    first = await store.put(key("small"), thing("small"), 0)
    other = fill(small_disk)
    with pytest.raises(ExhaustedError, match="full"):
        await store.put(key("large"), thing("large", 1 << 20), 0)
    assert store.get(key("large")) is None
    assert store.revision == first.revision
    other.unlink()
    after = await store.put(key("tiny"), thing("tiny"), 0)
    await store.stop()
    again = await opened(path)
    assert [r.key.name for r in again.records("things")] == ["small", "tiny"]
    assert again.revision == after.revision
    await again.stop()


async def test_a_read_only_database_rejects_the_write(path: Path) -> None:
    store = await opened(path)
    assert store._file is not None
    store._file._connection.execute("PRAGMA query_only=1")
    with pytest.raises(UnavailableError, match="read-only"):
        await store.put(key("x"), thing("x"), 0)
    assert store.get(key("x")) is None
    await store.stop()


async def test_rows_without_data_are_purged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tonnage_box.apiserver.storage.sqlite._TOMBSTONES", 10)
    store = await opened(path)
    for n in range(30):
        record = await store.put(key(str(n)), thing(str(n)), 0)
        await store.remove(key(str(n)), thing(str(n)), record.revision)
    assert store._file is not None
    (rows,) = store._file._connection.execute("SELECT count(*) FROM objects").fetchone()
    assert rows <= 11
    await store.stop()


async def test_writes_after_the_end_are_rejected(path: Path) -> None:
    store = await opened(path)
    await store.stop()
    with pytest.raises(UnavailableError):
        await store.put(key("x"), thing("x"), 0)


async def test_stop_finishes_what_has_begun(path: Path) -> None:
    store = await opened(path)
    writes = [asyncio.ensure_future(store.put(key(str(n)), thing(str(n)), 0)) for n in range(500)]
    await asyncio.sleep(0)
    await store.stop()
    await asyncio.gather(*writes)
    again = await opened(path)
    assert again.count("things") == 500
    await again.stop()


def killed_writer(path: Path) -> list[str]:
    """Run eight writers in a process of their own, kill it in the middle; the names whose writes were answered."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    answered = [process.stdout.readline().strip() for _ in range(300)]
    process.send_signal(signal.SIGKILL)
    answered += [line.strip() for line in process.stdout.read().split("\n")[:-1]]
    process.wait()
    process.stdout.close()
    return answered


async def test_kill_loses_nothing_that_was_answered(path: Path) -> None:
    answered = killed_writer(path)
    store = await opened(path)
    found = {record.key.name for record in store.records("things")}
    assert len(answered) >= 300
    assert found.issuperset(answered)
    before = store.revision
    assert (await store.put(key("after"), thing("after"), 0)).revision > before
    await store.stop()
