"""Running programs: output, failure, time limits."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from tonnage.host.run import OUTPUT_LIMIT, CommandError, run


def test_says_what_the_program_printed() -> None:
    assert run(["sh", "-c", "printf hello; printf noise >&2"]) == "hello"


def test_environment_is_small_and_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    names = {line.partition("=")[0] for line in run(["env"]).splitlines()}
    assert names == {"PATH", "LC_ALL", "TZ"}


def test_failure_tells_command_code_and_stderr() -> None:
    with pytest.raises(CommandError, match=r"sh -c .*: exit code 3: broken") as caught:
        run(["sh", "-c", "echo broken >&2; exit 3"])
    assert (caught.value.code, caught.value.stderr, caught.value.command[0]) == (3, "broken", "sh")


def test_death_by_signal() -> None:
    with pytest.raises(CommandError, match="killed by signal 9") as caught:
        run(["sh", "-c", "kill -9 $$"])
    assert caught.value.code == -9


def test_program_that_is_not_there() -> None:
    with pytest.raises(CommandError, match=r"mkfs\.nothing is not installed"):
        run(["mkfs.nothing"])


def test_time_limit_kills_the_whole_group() -> None:
    with pytest.raises(CommandError, match=r"not done after 0.3 s") as caught:
        run(["sh", "-c", "sleep 1000 & echo $!; wait"], timeout=0.3)
    assert caught.value.code is None


def test_time_limit_holds_when_only_a_grandchild_keeps_the_output_open() -> None:
    with pytest.raises(CommandError, match="not done"):
        run(["sh", "-c", "sleep 1000 & exit 0"], timeout=0.3)


def test_program_that_closes_its_output_is_waited_for() -> None:
    with pytest.raises(CommandError, match="exit code 3"):
        run(["sh", "-c", "exec >&- 2>&-; sleep 0.05; exit 3"])
    with pytest.raises(CommandError, match="not done"):
        run(["sh", "-c", "exec >&- 2>&-; sleep 1000"], timeout=0.3)


def test_programs_are_waited_for_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", absent)
    assert run(["sh", "-c", "echo yes; exec >&- 2>&-; sleep 0.05"]) == "yes\n"


def test_output_is_bounded() -> None:
    assert len(run(["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x"])) == OUTPUT_LIMIT


def test_descriptors_are_inherited_by_name_only() -> None:
    mine, other = os.memfd_create("mine"), os.memfd_create("other")
    try:
        listed = run(["ls", "/proc/self/fd"], pass_fds=(mine,)).split()
        assert str(mine) in listed
        assert str(other) not in listed
    finally:
        os.close(mine)
        os.close(other)


def test_a_stop_kills_the_whole_group() -> None:
    wake = os.eventfd(0)
    assert run(["echo", "done"], stop=wake) == "done\n"
    timer = threading.Timer(0.2, os.eventfd_write, (wake, 1))
    timer.start()
    with pytest.raises(CommandError, match="stopped"):
        run(["sh", "-c", "sleep 1000 & sleep 1000"], stop=wake)
    timer.join()
    os.close(wake)
