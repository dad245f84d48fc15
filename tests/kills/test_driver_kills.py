"""kill -9 before every system call of every RPC, over each kind of pool; life.py says what is killed and checked.

Each kind is a campaign in a process of its own; as many run at a time as the machine has processors. All of them again
from the life that a failure names: `--kills 1 --kill-seed NUMBER`; 100,000 kills: `--kills 100000`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.kills.kinds import GUEST, KINDS, NATIVE

ROOT = Path(__file__).parents[2]
UML = ROOT / "tests/vm/uml.py"
_SHARES = {"lvm thick": 0.1, "lvm thin": 0.1, "quota xfs": 0.3, "quota ext4": 0.3}
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


class Campaigns:
    """Runs campaigns ahead of the tests that wait for them."""

    def __init__(self, folder: Path, kills: int, seed: int) -> None:
        self._folder = folder
        self._kills = kills
        self._seed = seed
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1)
        self._all: dict[str, Future[subprocess.CompletedProcess[str]]] = {}

    def begin(self, kinds: list[str]) -> None:
        """Run those, in this order. One alone has all the kills; several have their shares of what all kinds have, so
        that guests and the machine's own kinds may run in sessions of their own."""
        shared = kinds if len(kinds) == 1 else KINDS
        parts = sum(_SHARES.get(kind, 1.0) for kind in shared)
        for kind in kinds:
            kills = max(1, round(self._kills * _SHARES.get(kind, 1.0) / parts))
            self._all[kind] = self._threads.submit(self._run, kind, kills)

    def _run(self, kind: str, kills: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.kills.campaign", kind, "--kills", str(kills)]
        command += ["--seed", str(self._seed)]
        if kind in GUEST:
            runner = [sys.executable, str(UML), "--disk", "2G", "--disk", "2G"]
            command = [*runner, "--timeout", str(600 + 10 * kills), "--", *command]
        else:
            command += ["--folder", str(self._folder)]
        for _ in range(_TRIES):
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
            if ended.returncode != _HUNG or kind not in GUEST:
                break
        return ended

    def told(self, kind: str) -> Any:
        """What a campaign told at its end. Raises AssertionError when it failed."""
        ended = self._all[kind].result()
        assert ended.returncode == 0, f"{kind}: exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr[-20000:]}"
        return json.loads(ended.stdout.splitlines()[-1])

    def end(self) -> None:
        """Begin no more."""
        self._threads.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def uml_missing() -> str:
    """Why no guest can be had here, "" when it can."""
    if shutil.which("lvm", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        return "needs lvm (Debian: apt-get install lvm2)"
    return subprocess.run([sys.executable, UML, "--check"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def campaigns(
    request: pytest.FixtureRequest, rooted: None, traced: None, fast_folder: Path, uml_missing: str
) -> Iterator[Campaigns]:
    """The campaigns of all kinds that were asked for, begun together."""
    chosen = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    wanted = {item.callspec.params.get("kind") for item in chosen if hasattr(item, "callspec")}
    kinds = [kind for kind in KINDS if kind in wanted and not (_missing(kind) or (uml_missing and kind in GUEST))]
    running = Campaigns(fast_folder, request.config.getoption("--kills"), request.config.getoption("--kill-seed"))
    running.begin(sorted(kinds, key=lambda kind: kind not in GUEST))  # the slow ones first
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


def _missing(kind: str) -> str:
    """What a kind needs that is not there."""
    absent = [p for p in KINDS[kind].programs if shutil.which(p, path="/usr/sbin:/sbin:/usr/bin:/bin") is None]
    return f"needs {', '.join(absent)}" if absent else ""


@pytest.mark.real
@pytest.mark.timeout(0)  # each driver process has an end of its own instead
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.kills] if kind in _QUICK else []) for kind in NATIVE]
)
def test_a_driver_killed_in_any_call_is_as_one_that_was_not(
    kind: str, campaigns: Campaigns, tell: Callable[[str], None]
) -> None:
    if reason := _missing(kind):
        pytest.skip(reason)
    _check(kind, campaigns, tell)


@pytest.mark.real
@pytest.mark.uml
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", GUEST)
def test_the_same_in_a_guest(kind: str, uml_missing: str, campaigns: Campaigns, tell: Callable[[str], None]) -> None:
    if reason := uml_missing or _missing(kind):
        pytest.skip(reason)
    _check(kind, campaigns, tell)


@pytest.mark.real
@pytest.mark.timeout(0)
def test_a_driver_that_does_not_clean_up_is_found_out(rooted: None, traced: None, fast_folder: Path) -> None:
    if reason := _missing("image sparse"):
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.kills.campaign", "image sparse", "--kills", "500", "--careless"]
    command += ["--folder", str(fast_folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    assert ended.returncode == 1
    assert "something is left, or missing" in ended.stderr
    assert "the same life again: --kills 1 --kill-seed" in ended.stderr
