"""Kills of an inline driver before each system call of one phase of a volume's life."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from tests.crash.kills.tracer import Step, Tracer, in_fork

from tonnage.host import mount


class Life(Protocol):
    """One volume below a folder; its methods without arguments are phases, each of a new process."""

    folder: Path


L = TypeVar("L", bound=Life)


def kill_at_each_step(
    folder: Path,
    make: Callable[[Path], L],
    phase: str,
    check: Callable[[L], Awaitable[None]],
    *,
    before: Sequence[str] = (),
    after: Callable[[L], Sequence[str]] = lambda _life: (),
    most: int,
    seconds: int,
) -> int:
    """Number of kills until the phase ends by itself. make: a life in a new folder. before: phases that come first.

    check: what the next process has to find, and to make of it. It removes the volume. after: what is left in the folder
    without its memory, and should not be.
    """
    count = folder / "count"

    def campaign() -> None:
        tracer = Tracer()
        for number in range(1, most):
            life = make(folder / f"{number}")
            life.folder.mkdir()
            for step in before:
                assert tracer.run(partial(_run, getattr(life, step)), traced=False).status == 0
            at = _killed_at(tracer, number, getattr(life, phase))
            ended = tracer.run(partial(_run, partial(check, life)), traced=False)
            assert ended.status == 0, f"killed at step {number}: {at}"
            mount.umount(life.folder / "mem")
            assert not after(life)
            if not at:
                count.write_text(str(number - 1))
                return
        raise AssertionError("it never ends")

    try:
        in_fork(campaign, seconds)
    finally:
        for one in reversed([one.target for one in mount.mounts() if one.target.startswith(f"{folder}/")]):
            mount.umount(one, lazy=True)
    return int(count.read_text())


def _run(body: Callable[[], Awaitable[None]]) -> None:
    """For a forked process."""
    try:
        asyncio.run(body())  # type: ignore[arg-type]
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _killed_at(tracer: Tracer, number: int, body: Callable[[], Awaitable[None]]) -> str:
    """The step that the body was killed before, "" if it ended first."""
    at: list[str] = []

    def kill(step: Step) -> bool:
        if step.number == number:
            at.append(step.what)
            tracer.kill_all()
        return bool(at)

    ended = tracer.run(lambda: _run(body), traced=True, at_step=kill)
    assert os.WIFEXITED(ended.status) != bool(at)
    assert at or os.WEXITSTATUS(ended.status) == 0
    tracer.outlast()
    return at[0] if at else ""
