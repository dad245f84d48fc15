"""Suites that run inside user-mode Linux or QEMU: each boots it once, and every test of it is reported by name."""

from __future__ import annotations

import pytest
from tests.vm.guests import RESTARTED, RESULTS, guest_suite, in_guest, in_qemu, qemu, qemu_suite, uml  # noqa: F401


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--guest-damage", type=int, default=4, help="changed records to start with, for each kind of pool in a guest"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the tests that ran inside, as they would not be seen otherwise."""
    for name, results in config.stash.get(RESULTS, {}).items():
        passed = sum(result == "PASSED" for result in results.values())
        terminalreporter.section(f"{name}, {passed} of {len(results)} passed")
        for test, result in results.items():
            if result != "PASSED" or config.get_verbosity() > 0:
                terminalreporter.line(f"{result} {test}")
    for command in config.stash.get(RESTARTED, []):
        terminalreporter.line(f"a guest hung and was started again, {command}")
