"""The program that starts commands: the same system calls on each machine, and no file of the container."""

from __future__ import annotations

import errno
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import keys

from tonnage.base.errors import InvalidError, UnsupportedError
from tonnage_box.api import pod_security
from tonnage_box.kubelet.containers.start.machine_code import MACHINES
from tonnage_box.kubelet.containers.start.program import StartPlan, build

EVERY = pod_security.granted({})
PLAN = StartPlan(1234, 55, (77, 88), ["foo", "a"], "/usr/bin:relative:/sbin", EVERY, folder="/work", terminal=True)
STACK = 1 << 40
_WORD, _HALF = (1 << 64) - 1, 1 << 63
Results = Callable[[str, tuple[int, ...]], int]


class Arm64:
    """Runs the few instructions of arm64 that the program has. results: what each system call returns."""

    def __init__(self, program: bytes, results: Results) -> None:
        self.registers = [0] * 32
        self.memory: dict[int, int] = {}
        self.log: list[tuple[Any, ...]] = []
        self._results, self._flags = results, (False, False)
        self._names = {number: name for name, number in MACHINES["aarch64"].calls.items()}
        entry = struct.unpack_from("<Q", program, 24)[0]
        for at in (64, 120):
            _, _, offset, address, _, size, _, _ = struct.unpack_from("<IIQQQQQQ", program, at)
            self.memory |= {address + i: byte for i, byte in enumerate(program[offset : offset + size])}
        self._at = entry

    def run(self) -> list[tuple[Any, ...]]:
        """All system calls until the exit."""
        while not self.log or self.log[-1][0] != "exit_group":
            (word,) = struct.unpack("<I", self.read(self._at, 4))
            self._at += 4
            self._step(word)
        return self.log

    def read(self, address: int, size: int) -> bytes:
        return bytes(self.memory.get(address + i, 0) for i in range(size))

    def text(self, address: int) -> str:
        return self.read(address, 100).partition(b"\0")[0].decode()

    def _step(self, word: int) -> None:
        x, target = self.registers, word & 31
        part, value = (word >> 21 & 3) * 16, word >> 5 & 0xFFFF
        if word >> 23 == 0x1A5:  # movz
            x[target] = value << part
        elif word >> 23 == 0x1E5:  # movk
            x[target] = x[target] & ~(0xFFFF << part) | value << part
        elif word & 0xFFE0FFE0 == 0x8B2063E0:  # add xT, sp, xN
            x[target] = STACK + x[word >> 16 & 31] & _WORD
        elif word & 0xFFE0FFE0 == 0xAA0003E0:  # mov xT, xN
            x[target] = x[word >> 16 & 31]
        elif word & 0xFFC003FF in (0xF100001F, 0xB100001F):  # cmp x0, #N and cmn x0, #N
            number = word >> 10 & 0xFFF
            found = x[0] - number if word >> 24 == 0xF1 else x[0] + number
            self._flags = (found & _WORD == 0, found & _WORD >= _HALF)
        elif word >> 26 == 5:  # b
            self._at += _signed(word & 0x3FFFFFF, 26) * 4 - 4
        elif word >> 24 == 0x54 and target in (0, 10, 12):  # b.eq, b.ge, b.gt
            zero, negative = self._flags
            if {0: zero, 10: not negative, 12: not zero and not negative}[target]:
                self._at += _signed(word >> 5 & 0x7FFFF, 19) * 4 - 4
        else:
            assert word == 0xD4000001, hex(word)  # svc #0
            name, arguments = self._names[x[8]], (x[0], x[1], x[2])
            x[0] = self._results(name, arguments) & _WORD
            self.log.append((name, *self._shown(name, arguments)))

    def _shown(self, name: str, arguments: tuple[int, ...]) -> Iterator[Any]:
        first, second, third = arguments
        match name:
            case "chdir":
                yield self.text(first)
            case "execve":
                yield from (self.text(first), second - STACK, third - STACK)
            case "write":
                yield self.read(second, third).decode()
            case "setgroups":
                yield from struct.unpack(f"<{first}I", self.read(second, 4 * first))
            case "prctl" | "keyctl":
                yield from (first, second)
            case "capset":
                yield self.read(second, 24).hex()
            case "exit_group":
                yield first
            case "setresuid" | "setresgid":
                yield from arguments


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def _failing(**errors: int) -> Results:
    return lambda name, arguments: -errors.get(name, 0)


def test_the_calls_of_arm64() -> None:
    assert Arm64(build(PLAN, "aarch64"), _failing(execve=errno.ENOENT)).run() == [
        ("close_range",),
        ("setsid",),
        ("ioctl",),
        ("chdir", "/work"),
        ("keyctl", 1, 0),
        *(("prctl", 24, number) for number in range(64) if not EVERY >> number & 1),
        ("setgroups", 77, 88),
        ("setresgid", 55, 55, 55),
        ("setresuid", 1234, 1234, 1234),
        ("capset", "00" * 24),
        ("execve", "/usr/bin/foo", 16, 40),
        ("execve", "/sbin/foo", 16, 40),
        ("write", 'exec: "foo": executable file not found in $PATH\n'),
        ("exit_group", 127),
    ]


def test_it_waits_until_the_root_is_complete() -> None:
    plan = replace(PLAN, gate=9)
    let_in = Arm64(build(plan, "aarch64"), lambda name, arguments: 1 if name == "read" else 0).run()
    assert let_in[:3] == [("write", "\n"), ("read",), ("close_range",)]
    for result in (0, -errno.EINTR):
        log = Arm64(build(plan, "aarch64"), _failing(read=-result)).run()
        assert log == [("write", "\n"), ("read",), ("exit_group", 125)]


def test_root_has_what_is_not_dropped() -> None:
    plan = replace(PLAN, uid=0, capabilities=EVERY & ~(1 << 8 | 1 << 31))
    log = Arm64(build(plan, "aarch64"), _failing()).run()
    assert {("prctl", 24, 8), ("prctl", 24, 31), ("prctl", 24, 21)} <= set(log)
    assert not {("prctl", 24, number) for number in range(64) if plan.capabilities >> number & 1} & set(log)
    held = struct.pack("<I", plan.capabilities).hex()
    assert ("capset", held * 2 + "00" * 16) in log
    assert [name for name, *_ in log].index("prctl") < [name for name, *_ in log].index("setgroups")


def test_a_kernel_without_keys() -> None:
    log = Arm64(build(PLAN, "aarch64"), _failing(keyctl=errno.ENOSYS)).run()
    assert "execve" in [name for name, *_ in log]


def test_a_kernel_that_knows_fewer_capabilities() -> None:
    log = Arm64(build(PLAN, "aarch64"), lambda name, arguments: -errno.EINVAL if arguments[1] == 41 else 0).run()
    assert [call for call in log if call[0] == "prctl"][-1] == ("prctl", 24, 41)
    assert "execve" in [name for name, *_ in log]


@pytest.mark.parametrize("step", ["chdir", "keyctl", "prctl", "setgroups", "setresgid", "setresuid", "capset"])
def test_nothing_runs_after_a_step_that_failed(step: str) -> None:
    log = Arm64(build(PLAN, "aarch64"), _failing(**{step: errno.EPERM})).run()
    assert "execve" not in [name for name, *_ in log]
    assert log[-3][0] == step
    assert log[-1] == ("exit_group", 125)


def test_a_program_that_may_not_be_run_is_told_after_the_others() -> None:
    found = iter((-errno.EACCES, -errno.ENOENT))
    log = Arm64(build(PLAN, "aarch64"), lambda name, arguments: next(found) if name == "execve" else 0).run()
    assert log[-2:] == [("write", 'exec: "foo": permission denied\n'), ("exit_group", 126)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes another user")
@pytest.mark.skipif(platform.machine() not in MACHINES, reason="the program is not for this machine")
@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["/bin/sh", "-c", 'id -u; id -g; id -G; pwd; echo "$1 $A"', "sh", "x"], 0, "1234|55|55 77 88|/usr|x b|"),
        (["sh", "-c", "ls /proc/self/fd | wc -l"], 0, "4|"),
        (["/no/program"], 127, 'exec: "/no/program": no such file or directory|'),
        (["nothing"], 127, 'exec: "nothing": executable file not found in $PATH|'),
        (["/etc/passwd"], 126, 'exec: "/etc/passwd": permission denied|'),
    ],
)
def test_it_becomes_the_command_on_this_machine(tmp_path: Path, argv: list[str], code: int, said: str) -> None:
    program = tmp_path / "start"
    program.write_bytes(build(replace(PLAN, argv=argv, folder="/usr", terminal=False, path="/usr/bin:/bin")))
    program.chmod(0o755)
    done = subprocess.run([program, *argv], env={"PATH": "/usr/bin:/bin", "A": "b"}, capture_output=True, check=False)
    assert (done.returncode, (done.stdout + done.stderr).decode().replace("\n", "|")) == (code, said)


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="the program is not for this machine")
def test_its_session_keyring_is_its_own(tmp_path: Path) -> None:
    keys.needs_keys()
    program, argv = tmp_path / "start", [sys.executable, "-c", "from tests import keys; print(keys.session_keyring())"]
    program.write_bytes(build(replace(PLAN, uid=0, argv=argv, folder="", terminal=False)))
    program.chmod(0o755)
    found = {
        int(subprocess.run([program, *argv], env={"PYTHONPATH": os.getcwd()}, capture_output=True, check=True).stdout)
        for _ in range(2)
    }
    assert len(found | {keys.session_keyring()}) == 3


def test_what_cannot_be_built() -> None:
    with pytest.raises(UnsupportedError, match="x86_64 and aarch64 only: this machine is s390x"):
        build(PLAN, "s390x")
    with pytest.raises(InvalidError, match="command"):
        build(replace(PLAN, argv=["a\0b"]))
