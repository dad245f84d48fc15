"""A discovery directory for the tests of the static pool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.storage.pools.static.disks import Bench

from tonnage.host import loop


@pytest.fixture
async def bench(real_folder: Path) -> AsyncIterator[Bench]:
    made = Bench(real_folder)
    made.disks.mkdir(mode=0o755)
    yield made
    if made.pool is not None:
        await made.pool.close()
    for attached in made.loops:
        loop.detach(attached.index)
