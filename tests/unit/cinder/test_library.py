"""What the child with Cinder's library answers where that is not installed (tests/cinder has it)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, InvalidError
from tonnage.cinder import library
from tonnage.cinder.child import Child


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Child]:
    setup = {"state": str(tmp_path / "state"), "backends": []}
    made = Child("storage", (sys.executable, "-I", library.__file__), setup, limit=60)
    yield made
    await made.close()


async def test_what_is_not_installed_is_named(child: Child) -> None:
    for _ in range(2):  # each in a process of its own, as a library that was set up half is not used again
        with pytest.raises(HostError, match="storage: get: ModuleNotFoundError: No module named 'cinderlib'"):
            await child.call("get", name="v")
    with pytest.raises(HostError, match="No module named 'os_brick'"):
        await child.call("properties")


async def test_a_setup_that_fails_is_tried_again(tmp_path: Path, child: Child) -> None:
    state = tmp_path / "state"
    state.write_text("no folder")
    for _ in range(2):
        with pytest.raises(HostError, match="storage: setup: FileExistsError"):
            await child.call("get", name="v")
    state.unlink()
    with pytest.raises(HostError, match="No module named 'cinderlib'"):
        await child.call("get", name="v")


async def test_a_request_that_there_is_not(child: Child) -> None:
    with pytest.raises(InvalidError, match="there is no request 'close'"):
        await child.call("close")


class NotFound(Exception):
    """As Cinder's."""


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (type("VolumeNotFound", (NotFound,), {})("v"), "not-found"),
        (type("VolumeIsBusy", (Exception,), {})(), "in-use"),
        (RuntimeError("Volume group has insufficient free space (0 extents)"), "full"),
        (RuntimeError("login failed"), "failed"),
        (library.RequestError("invalid", "x"), "invalid"),
    ],
)
def test_kinds_of_errors(failure: Exception, kind: str) -> None:
    assert library.kind_of(failure) == kind


def test_what_a_program_said_is_shown() -> None:
    """Of oslo's ProcessExecutionError, whose own text is what the program was called with, in several lines."""
    attributes = {"cmd": "lvcreate -n v storage", "exit_code": 5, "stderr": '  group "storage" not found\n  cannot\n'}
    failure = type("ProcessExecutionError", (Exception,), attributes)("Unexpected error while running command.")
    assert library.text_of(failure) == 'lvcreate -n v storage: exit code 5: group "storage" not found; cannot'
    assert (
        library.text_of(type("ProcessExecutionError", (Exception,), {"stderr": ""})("x")) == "ProcessExecutionError: x"
    )
    assert library.text_of(ValueError()) == "ValueError"
