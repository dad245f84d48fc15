"""The kernel reports changes of directories."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tonnage.host.inotify import CREATE, DELETE, ONLYDIR, Inotify


async def test_names_of_what_changed_are_reported(tmp_path: Path) -> None:
    with Inotify() as watched:
        watched.add(str(tmp_path), CREATE | DELETE)
        waiting = asyncio.ensure_future(watched.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        (tmp_path / "a").touch()
        async with asyncio.timeout(60):
            assert await waiting == {"a"}
            (tmp_path / "b").touch()
            (tmp_path / "a").unlink()
            assert await watched.wait() == {"a", "b"}


async def test_what_cannot_be_watched_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Inotify() as watched:
        with pytest.raises(FileNotFoundError):
            watched.add(str(tmp_path / "missing"), CREATE)
        with pytest.raises(NotADirectoryError):
            watched.add(str(tmp_path / "file"), CREATE | ONLYDIR)
    watched.close()
