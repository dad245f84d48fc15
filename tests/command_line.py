"""Fixtures of tests that run verbs in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tonnage.tools.cli.main import main


class Ended(NamedTuple):
    """What a verb printed, and its exit code."""

    code: int
    out: str
    error: str


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Verbs set logging up for a process of their own, over the standard error of the moment."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def tonnage(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs one verb."""

    def run(*arguments: object) -> Ended:
        code = main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return Ended(code, shown.out, shown.err)

    return run
