"""Creations that gave up, were done later, and whose process was killed before it deleted what they made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.hanging import HangingPool

from tonnage.base.errors import ExhaustedError, HostError
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.given_up import FOLDER, PATIENCE, GivenUp, NoteFiles
from tonnage.storage.pools.base.record import STAGED
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.core.probe import EVERY
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.simulate.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30
NEW = VolumeRequest("new", GIB)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[HangingPool]:
    pool = HangingPool("p", 10 * GIB)
    pool.volumes.given_up.keep_in(tmp_path)
    await pool.open()
    yield pool
    pool.goes.set()
    await pool.close()


async def _gives_up(pool: HangingPool, request: VolumeRequest = NEW) -> None:
    pool.goes.set()
    await asyncio.sleep(2 * EVERY)
    pool.goes.clear()
    with pytest.raises(ExhaustedError, match="it cannot write: a write has not ended for 20 s"):
        await pool.create(request)


async def _next(pool: HangingPool, state: Path) -> Pool:
    """The pool of the next process, which has the volumes of this one. What hangs here never goes on."""
    following = Pool("p", pool.backend, clock=LoopClock())
    pool.backend.is_instant = True
    following.volumes.given_up.keep_in(state)
    await following.open()
    return following


def _notes(state: Path) -> list[str]:
    return NoteFiles(state, "p").names()


async def _names(pool: Pool) -> list[str]:
    return [volume.name for volume in await pool.list()]


async def test_what_was_made_before_the_kill_is_deleted_at_the_next_start(
    pool: HangingPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await _gives_up(pool)
    assert _notes(tmp_path) == ["new"], "before the answer"
    pool.volumes._create(NEW)  # the thread has come to its end, and the process is killed
    caplog.set_level(logging.INFO)
    following = await _next(pool, tmp_path)
    assert (await _names(following), _notes(tmp_path)) == ([], [])
    said = "deleted what=volume name=new pool=p proof=its call was given up, never staged"
    assert [record.getMessage() for record in caplog.records].count(said) == 1
    await following.close()


async def test_what_was_never_made_leaves_no_note(
    pool: HangingPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await _gives_up(pool)
    following = await _next(pool, tmp_path)
    assert (await _names(following), _notes(tmp_path)) == ([], [])
    assert "deleted" not in caplog.text
    await following.close()


@pytest.mark.parametrize("why", ["staged", "an earlier version's", "copied", "used"])
async def test_what_may_hold_data_stays(
    pool: HangingPool, tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.create(VolumeRequest("old", GIB))
    request = VolumeRequest("new", GIB, source=VolumeOrigin(volume="old")) if why == "copied" else NEW
    await _gives_up(pool, request)
    record = pool.volumes._create(request)
    if why == "staged":
        pool.backend.write(structs.replace(record, owner={**record.owner, STAGED: "1.0"}))
    elif why == "an earlier version's":
        owner = {key: value for key, value in record.owner.items() if key != STAGED}
        pool.backend.write(structs.replace(record, owner=owner))
    elif why == "used":
        monkeypatch.setattr(pool.backend, "shows_use", lambda record: record.name == "new")
    following = await _next(pool, tmp_path)
    assert await _names(following) == ["new", "old"], "as an orphan, for a person"
    assert _notes(tmp_path) == []
    await following.close()


async def test_what_was_handed_over_has_no_note(pool: HangingPool, tmp_path: Path) -> None:
    """Before the call that gave up, or by one that repeated it."""
    await pool.create(VolumeRequest("old", GIB))
    await _gives_up(pool, VolumeRequest("old", GIB))
    assert _notes(tmp_path) == [], "it was there before"
    await _gives_up(pool)
    assert _notes(tmp_path) == ["new"]
    pool.probe.fault = ""
    again = asyncio.ensure_future(pool.create(NEW))
    await asyncio.sleep(0)
    pool.goes.set()
    await again
    assert _notes(tmp_path) == []
    following = await _next(pool, tmp_path)
    assert await _names(following) == ["new", "old"]
    await following.close()


async def test_a_volume_is_handed_over_only_when_its_note_is_gone(
    pool: HangingPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _gives_up(pool)

    def fails(files: NoteFiles, name: str) -> None:
        raise HostError("read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(NoteFiles, "remove", fails)
        pool.probe.fault = ""
        again = asyncio.ensure_future(pool.create(NEW))
        await asyncio.sleep(0)
        pool.goes.set()
        with pytest.raises(HostError, match="read-only"):
            await again
        assert _notes(tmp_path) == ["new"]
    await pool.create(NEW)
    assert _notes(tmp_path) == []


async def test_what_this_process_deletes_itself_leaves_no_note(pool: HangingPool, tmp_path: Path) -> None:
    await _gives_up(pool)
    pool.goes.set()
    await asyncio.sleep(EVERY)
    assert (await _names(pool), _notes(tmp_path)) == ([], [])


async def test_notes_on_the_disk_that_hangs_delay_an_answer_by_seconds_only(pool: HangingPool, tmp_path: Path) -> None:
    given_up, answers = pool.volumes.given_up, asyncio.Event()
    run = given_up._threads.run

    async def hangs(work: Any, *args: Any) -> Any:
        await answers.wait()
        return await run(work, *args)

    given_up._threads.run = hangs  # type: ignore[method-assign,assignment]
    loop = asyncio.get_running_loop()
    before = loop.time()
    await _gives_up(pool)
    assert loop.time() - before <= 2 * EVERY + 25 + PATIENCE + 1
    assert _notes(tmp_path) == []
    answers.set()
    pool.goes.set()
    await asyncio.sleep(EVERY)
    assert (await _names(pool), _notes(tmp_path)) == ([], []), "in the order of the calls"


async def test_notes_that_cannot_be_read_stop_no_pool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FOLDER).touch()
    pool = FakePool("p", 10 * GIB)
    pool.volumes.given_up.keep_in(tmp_path)
    await pool.open()
    assert "notes of calls that gave up are not read pool=p" in caplog.text
    with pytest.raises(HostError, match="note about volume new"):
        await pool.create(NEW)
    (tmp_path / FOLDER).unlink()
    await pool.create(NEW)
    await pool.close()


async def test_without_a_folder_there_are_none() -> None:
    notes = GivenUp("p")
    await notes.add("v")
    await notes.remove("v")
    assert await notes.names() == []
    await notes.close()
