"""Guests: what runs inside of user-mode Linux or QEMU, and how it ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from tests import processes

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HUNG, TRIES = 123, 3
"""Exit code of a guest whose kernel hung, and how often one is started: see rig.py."""
SECONDS = 600.0
"""Far above what a command takes: a guest needs 9 s of CPU to boot, which took over 60 s beside other lanes of CI."""
_LINE = re.compile(r"^(\S+::\S.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
RESTARTED: pytest.StashKey[list[str]] = pytest.StashKey()
RESULTS: pytest.StashKey[dict[str, dict[str, str]]] = pytest.StashKey()


@dataclass
class Ended:
    """How a command in the guest ended."""

    code: int
    out: str
    err: str
    results: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Every test inside ran, and none failed."""
        failed = [test for test, result in self.results.items() if result in ("FAILED", "ERROR")]
        skipped = [test for test, result in self.results.items() if result == "SKIPPED"]
        output = f"{self.out}\n{self.err}"
        assert not failed, f"failed inside: {', '.join(failed)}\n{output}"
        assert not skipped, f"skipped inside: {', '.join(skipped)}\n{output}"
        assert self.code == 0, output
        assert self.results, output


def _missing(runner: Path) -> str:
    asked = subprocess.run([sys.executable, runner, "--check"], capture_output=True, text=True, check=True, timeout=600)
    return asked.stdout.strip()


def _processes(mark: str) -> list[str]:
    """Processes of the machine that have a variable in their environment, as all of one guest have."""
    return [f"{pid} {processes.arguments(pid)}" for pid in processes.with_variable(mark)]


@dataclass(frozen=True)
class Rig:
    """A kind of guests. option: of its program, for a scratch disk or NVDIMM. missing: why there are none, "" if not."""

    name: str
    program: Path
    option: str
    missing: str


@pytest.fixture(scope="session")
def uml() -> Rig:
    """User-mode Linux."""
    return Rig("user-mode Linux", HERE / "uml.py", "--disk", _missing(HERE / "uml.py"))


@pytest.fixture(scope="session")
def qemu() -> Rig:
    """QEMU with NVDIMMs for disks."""
    return Rig("QEMU", HERE / "qemu.py", "--nvdimm", _missing(HERE / "qemu.py"))


def _runs(rig: Rig, config: pytest.Config) -> Callable[..., Ended]:
    """Runs a command inside and sees that no process is left; skips where there is no such guest.

    A guest whose kernel hangs is started again, which is told at the end of the session.
    """
    if rig.missing:
        pytest.skip(rig.missing)
    hung = config.stash.setdefault(RESTARTED, [])

    def run(
        command: Sequence[str],
        *,
        disks: Sequence[str] = (),
        modules: Sequence[str] = (),
        boot: Sequence[str] = (),
        seconds: float = SECONDS,
        environment: Sequence[str] = (),
    ) -> Ended:
        words = [sys.executable, str(rig.program), "--timeout", str(seconds)]
        words += [word for size in disks for word in (rig.option, size)]
        words += [word for name in modules for word in ("--module", name)]
        words += [word for name in boot for word in ("--boot", name)]
        words += ["--", "env", *environment, *command]
        for _ in range(TRIES):
            ended = _once(words, seconds)
            if ended.code != HUNG:
                break
            hung.append(f"{rig.name}: {' '.join(command[-2:])}")
        return ended

    return run


def _once(words: Sequence[str], seconds: float) -> Ended:
    mark = f"TONNAGE_GUEST={uuid4()}"
    done = subprocess.run(
        words, capture_output=True, text=True, errors="replace", cwd=ROOT, timeout=seconds + 60, check=False,
        env={**os.environ, **dict([mark.split("=")])},
    )  # fmt: skip
    assert not (left := _processes(mark)), f"left behind: {left}"
    return Ended(done.returncode, done.stdout, done.stderr)


def _runs_suite(rig: Rig, config: pytest.Config) -> Callable[..., Ended]:
    """Runs pytest inside on some files; what came of each test is told at the end of the session.

    before: a shell command to be run inside first.
    """
    in_guest = _runs(rig, config)

    def run(name: str, *arguments: str, before: str = "true", **options: object) -> Ended:
        command = [sys.executable, "-m", "pytest", "-v", "--color=no", "--tb=short", "-p", "no:cacheprovider"]
        command += ["--basetemp", "/run/pytest", *arguments]
        ended = in_guest(["sh", "-c", f'{before} && exec "$@"', "sh", *command], **options)
        ended.results = dict(_LINE.findall(ended.out))
        config.stash.setdefault(RESULTS, {})[f"in {rig.name}: {name}"] = ended.results
        return ended

    return run


@pytest.fixture
def in_guest(uml: Rig, request: pytest.FixtureRequest) -> Callable[..., Ended]:
    """Runs a command in user-mode Linux, see _runs()."""
    return _runs(uml, request.config)


@pytest.fixture
def guest_suite(uml: Rig, request: pytest.FixtureRequest) -> Callable[..., Ended]:
    """Runs pytest in user-mode Linux, see _runs_suite()."""
    return _runs_suite(uml, request.config)


@pytest.fixture
def in_qemu(qemu: Rig, request: pytest.FixtureRequest) -> Callable[..., Ended]:
    """Runs a command in QEMU, see _runs()."""
    return _runs(qemu, request.config)


@pytest.fixture
def qemu_suite(qemu: Rig, request: pytest.FixtureRequest) -> Callable[..., Ended]:
    """Runs pytest in QEMU, see _runs_suite()."""
    return _runs_suite(qemu, request.config)
