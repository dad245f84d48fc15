"""The child: what it answers, and that no child ends the driver."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests import processes
from tests.unit.cinder.child import PATIENCE, Fault
from tests.unit.cinder.storage_child import SECRET

from tonnage.base.errors import ExhaustedError, HostError, NotFoundError, UnavailableError
from tonnage.cinder.child import Child
from tonnage_box.testing.wait import eventually


@pytest.fixture
async def child(tmp_path: Path, command: tuple[str, ...]) -> AsyncIterator[Child]:
    made = Child(
        "storage", command, {"state": str(tmp_path / "s"), "backends": [{"p_password": SECRET}]}, limit=PATIENCE
    )
    yield made
    await made.close()


async def test_kinds_of_errors(child: Child, fault: Fault) -> None:
    assert await child.call("stats", backend="first") == {"pool-1": 100, "pool-2": 7.9}
    with pytest.raises(NotFoundError, match="storage: extend: volume none does not exist"):
        await child.call("extend", name="none", size=1)
    fault("get", "before", "full")
    with pytest.raises(ExhaustedError):
        await child.call("get", name="v")
    fault("get", "before", "away")
    with pytest.raises(HostError):
        await child.call("get", name="v")


async def test_secrets_of_the_setup_are_not_in_errors(child: Child, fault: Fault) -> None:
    fault("get", "before", "away")
    with pytest.raises(HostError, match=r"login failed with \*\*\*$"):
        await child.call("get", name="v")


@pytest.mark.slow
async def test_a_hang_is_killed_with_all_that_it_started(child: Child, fault: Fault, storage: Path) -> None:
    assert await child.call("get", name="v") is None
    fault("get", "before", "hang")
    child.limit = 2
    with pytest.raises(UnavailableError, match="no answer in 2 s, the process was killed"):
        await child.call("get", name="v")
    child.limit = PATIENCE
    grandchild = int((storage / "grandchild").read_text())

    async def is_gone() -> bool:
        return not processes.is_running(grandchild)

    await eventually(is_gone)
    assert await child.call("get", name="v") is None


async def test_a_death_is_named_and_another_is_started(child: Child, fault: Fault) -> None:
    fault("get", "before", "kill")
    with pytest.raises(UnavailableError, match="the process ended: exit code -9; repeat the call"):
        await child.call("get", name="v")
    assert await child.call("get", name="v") is None


async def test_lines_that_are_no_answer_are_skipped(child: Child, fault: Fault) -> None:
    fault("get", "before", "garbage")
    assert await child.call("get", name="v") is None


async def test_a_line_without_end_is_a_death(tmp_path: Path) -> None:
    program = "while True: print('x' * (1 << 20), end='', flush=True)"
    child = Child("storage", (sys.executable, "-c", program), {}, limit=60)
    with pytest.raises(UnavailableError, match="the process ended"):
        await child.call("get", name="v")


async def test_no_such_interpreter(tmp_path: Path) -> None:
    child = Child("storage", (str(tmp_path / "python"), "x"), {}, limit=60)
    with pytest.raises(UnavailableError, match="No such file or directory"):
        await child.call("get", name="v")


async def test_a_cancelled_request_leaves_no_answer_to_others(child: Child) -> None:
    await child.call("create", name="v", size=1, source="", backend="first")
    asked = asyncio.ensure_future(child.call("list-volumes"))
    await asyncio.sleep(0)  # it is written, and waits for its answer
    asked.cancel()
    assert await child.call("get", name="none") is None
    assert (await child.call("get", name="v"))["name"] == "v"
