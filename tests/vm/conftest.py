"""Suites that run inside user-mode Linux: each boots it once, and every test of it is reported by name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RUNNER = HERE / "uml.py"
HUNG, TRIES = 123, 3
"""Exit code of a guest whose kernel hung, and how often one is started: see uml.py."""
_LINE = re.compile(r"^(\S+::\S.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
_HUNG: pytest.StashKey[list[str]] = pytest.StashKey()
_REPORTS: pytest.StashKey[dict[str, dict[str, str]]] = pytest.StashKey()


@dataclass
class Ended:
    """How a command in the guest ended."""

    code: int
    out: str
    err: str
    results: dict[str, str] = field(default_factory=dict)


def _runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("uml_runner", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _processes(mark: str) -> list[str]:
    """Processes of the machine that have a variable in their environment, as all of one guest have."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()!r}")
    return found


@pytest.fixture(scope="session")
def uml_missing() -> str:
    """Why no guest can be had here, "" when it can."""
    return str(_runner().missing())


@pytest.fixture
def in_guest(uml_missing: str, request: pytest.FixtureRequest) -> Callable[..., Ended]:
    """Runs a command inside and sees that no process is left; skips where there is no user-mode Linux.

    A guest whose kernel hangs is started again, which is told at the end of the session.
    """
    if uml_missing:
        pytest.skip(uml_missing)
    hung = request.config.stash.setdefault(_HUNG, [])

    def run(
        command: Sequence[str], *, disks: Sequence[str] = (), seconds: float = 60, environment: Sequence[str] = ()
    ) -> Ended:
        words = [sys.executable, str(RUNNER), "--timeout", str(seconds)]
        words += [word for size in disks for word in ("--disk", size)]
        words += ["--", "env", *environment, *command]
        for _ in range(TRIES):
            ended = once(words, seconds)
            if ended.code != HUNG:
                break
            hung.append(" ".join(command[-2:]))
        return ended

    def once(words: Sequence[str], seconds: float) -> Ended:
        mark = f"TONNAGE_GUEST={uuid4()}"
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", cwd=ROOT, timeout=seconds + 60, check=False,
            env={**os.environ, **dict([mark.split("=")])},
        )  # fmt: skip
        assert not (left := _processes(mark)), f"left behind: {left}"
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def guest_suite(in_guest: Callable[..., Ended], request: pytest.FixtureRequest) -> Callable[..., Ended]:
    """Runs pytest inside on some files; what came of each test is told at the end of the session.

    before: a shell command to be run inside first.
    """

    def run(name: str, *arguments: str, before: str = "true", **options: object) -> Ended:
        command = [sys.executable, "-m", "pytest", "-v", "--color=no", "--tb=short", "-p", "no:cacheprovider"]
        command += ["--basetemp", "/run/pytest", *arguments]
        ended = in_guest(["sh", "-c", f'{before} && exec "$@"', "sh", *command], **options)
        ended.results = dict(_LINE.findall(ended.out))
        request.config.stash.setdefault(_REPORTS, {})[name] = ended.results
        return ended

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the tests that ran inside, as they would not be seen otherwise."""
    for name, results in config.stash.get(_REPORTS, {}).items():
        passed = sum(result == "PASSED" for result in results.values())
        terminalreporter.section(f"in user-mode Linux: {name}, {passed} of {len(results)} passed")
        for test, result in results.items():
            if result != "PASSED" or config.get_verbosity() > 0:
                terminalreporter.line(f"{result} {test}")
    for command in config.stash.get(_HUNG, []):
        terminalreporter.line(f"user-mode Linux hung and was started again: {command}")
