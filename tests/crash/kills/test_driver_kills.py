"""kill -9 before every system call of every RPC, over each kind of pool; life.py says what is killed and checked.

Each kind is a campaign in a process of its own (batch.py); as many run at a time as the machine has processors. All of them again
from the life that a failure names: `--kills 1 --kill-seed NUMBER`; 100,000 kills: `--kills 100000`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.crash.kills.batch import Batch
from tests.crash.kills.kinds import GUESTS, KINDS, NATIVE, QEMU, UML
from tests.programs import absent, need

ROOT = Path(__file__).parents[3]
_RUNNERS = {
    UML: [str(ROOT / "tests/vm/uml.py"), "--disk", "2G", "--disk", "2G"],
    QEMU: [str(ROOT / "tests/vm/qemu.py"), "--nvdimm", "512M"],
}
"""How a command is run in a guest."""
_SHARES = {
    "lvm thick": 0.1, "lvm thin": 0.1, "lvm thick trash": 0.1, "lvm thin trash": 0.1, "pmem": 0.1, "pmem trash": 0.1, "quota xfs": 0.3,
    "quota ext4": 0.3,
}  # fmt: skip
"""How many kills a kind has for one of the others: what is slow has fewer."""


_QUICK = ("image sparse", "image block", "btrfs")
"""Kinds that the inner loop runs."""
_HUNG, _TRIES = 123, 3
"""Exit code of a guest whose kernel hung, and how often one is started: see tests/vm/uml.py."""
_WAYS = {
    "all": "with its tools",
    "driver": "without its tools",
    "held": "while a tool goes on later",
    "tool": "of a tool",
}


class Guests:
    """Machines within the machine."""

    def __init__(self) -> None:
        self._missing: dict[str, str] = {}

    def missing(self, kind: str) -> str:
        """Why a kind has no guest here, "" when it has, or needs none."""
        guest = KINDS[kind].guest
        if guest and guest not in self._missing:
            words = [sys.executable, _RUNNERS[guest][0], "--check"]
            self._missing[guest] = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        return self._missing.get(guest, "")


class Campaigns:
    """Runs campaigns ahead of the tests that wait for them."""

    def __init__(self, folder: Path, kinds: list[str], kills: int, seed: int) -> None:
        """Begin those. One alone of the machine's own has all the kills; others have their shares of what all kinds have,
        so that guests and the machine's own kinds may run in sessions of their own."""
        shared = kinds if len(kinds) == 1 and kinds[0] in NATIVE else KINDS
        parts = sum(_SHARES.get(kind, 1.0) for kind in shared)
        self._kills = {kind: max(1, round(kills * _SHARES.get(kind, 1.0) / parts)) for kind in kinds}
        self._seed = seed
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1)
        self._guests = {kind: self._threads.submit(self._run, kind) for kind in kinds if kind in GUESTS}
        given = ("--folder", str(folder))
        jobs = {kind: ["campaign", *self._arguments(kind), *given] for kind in kinds if kind not in GUESTS}
        self._batch = Batch(folder, jobs)

    def _arguments(self, kind: str) -> list[str]:
        return [kind, "--kills", str(self._kills[kind]), "--seed", str(self._seed)]

    def _run(self, kind: str) -> subprocess.CompletedProcess[str]:
        guest = KINDS[kind].guest
        assert guest is not None
        command = [sys.executable, *_RUNNERS[guest], "--timeout", str(600 + 10 * self._kills[kind]), "--"]
        command += [sys.executable, "-m", "tests.crash.kills.campaign", *self._arguments(kind)]
        for _ in range(_TRIES):
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
            if ended.returncode != _HUNG:
                break
        return ended

    def told(self, kind: str) -> Any:
        """What a campaign told at its end. Raises AssertionError when it failed."""
        ended = self._guests[kind].result() if kind in self._guests else self._batch.ended(kind)
        assert ended.returncode == 0, f"{kind}: exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr[-20000:]}"
        return json.loads(ended.stdout.splitlines()[-1])

    def end(self) -> None:
        """Begin no more."""
        self._batch.end()
        self._threads.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def guests() -> Guests:
    """Which guests can be had here."""
    return Guests()


@pytest.fixture(scope="module")
def campaigns(
    request: pytest.FixtureRequest, rooted: None, traced: None, fast_folder: Path, guests: Guests
) -> Iterator[Campaigns]:
    """The campaigns of all kinds that were asked for, begun together."""
    chosen = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    wanted = {item.callspec.params.get("kind") for item in chosen if hasattr(item, "callspec")}
    kinds = [kind for kind in KINDS if kind in wanted and not (absent(*KINDS[kind].programs) or guests.missing(kind))]
    kills, seed = request.config.getoption("--kills"), request.config.getoption("--kill-seed")
    running = Campaigns(fast_folder, kinds, kills, seed)
    yield running
    running.end()


def _check(kind: str, campaigns: Campaigns, tell: Callable[[str], None]) -> None:
    told = campaigns.told(kind)
    ways = ", ".join(f"{count} {_WAYS[way]}" for way, count in told["ways"].items())
    tell(
        f"driver over {kind}: {told['kills']} kills ({ways}) at {told['places']} of {told['steps']} steps in"
        f" {told['lives']} lives, {told['undone']} calls undone, {told['seconds']:.0f} s"
    )
    assert told["kills"]


@pytest.mark.real
@pytest.mark.campaign
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.kills] if kind in _QUICK else []) for kind in NATIVE]
)
def test_a_driver_killed_in_any_call_is_as_one_that_was_not(
    kind: str, campaigns: Campaigns, tell: Callable[[str], None]
) -> None:
    need(*KINDS[kind].programs)
    _check(kind, campaigns, tell)


_MARKS = {UML: pytest.mark.uml, QEMU: pytest.mark.qemu}


@pytest.mark.real
@pytest.mark.campaign
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=_MARKS[KINDS[kind].guest]) for kind in GUESTS])
def test_the_same_in_a_guest(kind: str, guests: Guests, campaigns: Campaigns, tell: Callable[[str], None]) -> None:
    if reason := guests.missing(kind):
        pytest.skip(reason)
    need(*KINDS[kind].programs)
    _check(kind, campaigns, tell)


@pytest.mark.real
@pytest.mark.timeout(1200)
def test_a_driver_that_does_not_clean_up_is_found_out(rooted: None, traced: None, fast_folder: Path) -> None:
    need(*KINDS["image sparse"].programs)
    command = [sys.executable, "-m", "tests.crash.kills.campaign", "image sparse", "--kills", "500", "--careless"]
    command += ["--folder", str(fast_folder), "--seed", "7"]  # the first life that finds it out today
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    assert ended.returncode == 1
    assert "something is left, or missing" in ended.stderr
    assert "the same life again: --kills 1 --kill-seed" in ended.stderr
