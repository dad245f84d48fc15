"""Programs that are started begin with each signal at its default, whatever this process inherited."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.signal_masks import without_threads

from tonnage_box.kubelet import signals

SHOW = ["/bin/grep", "^Sig[BI]", "/proc/self/status"]
NONE = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"


@pytest.fixture
def ignoring() -> Iterator[None]:
    """A process that nohup has started in the background of a script."""
    chosen = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU, signal.SIGRTMIN)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in chosen}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _shown(command: list[str]) -> str:
    return without_threads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.mark.usefixtures("ignoring")
def test_ignored_signals_are_reset_where_there_are_some() -> None:
    assert {signal.SIGHUP, signal.SIGINT, signal.SIGPIPE} <= signals.ignored()
    assert _shown(SHOW) != NONE
    prefix = signals.reset_by()
    assert prefix[0] == sys.executable
    assert _shown([*prefix, *SHOW]) == NONE


@pytest.mark.usefixtures("ignoring")
def test_the_command_has_no_variables_and_its_arguments_as_they_are() -> None:
    command: list[str | bytes] = [*signals.reset_by(), "/usr/bin/printf", "%s|", "a b", "", b"\xff\xfe"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=False, env={}).stdout == b"a b||\xff\xfe|"
    assert subprocess.run([*signals.reset_by(), "/usr/bin/env"], stdout=subprocess.PIPE, check=True).stdout == b""


def test_nothing_is_started_more_where_no_signal_is_ignored() -> None:
    code = "from tonnage_box.kubelet import signals; print(signals.reset_by())"
    ended = subprocess.run([*signals.reset_by(), sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert ended.stdout == b"[]\n"


def test_no_signal_is_blocked_in_what_this_thread_starts() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        with signals.none_blocked():
            blocked = _shown(["/bin/grep", "^SigB", SHOW[2]])
        assert blocked == NONE.splitlines(keepends=True)[0]
        assert signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
