"""Benchmarks by name: each can be run, and pages show only these."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from benchmarks.modules import MODULES
from benchmarks.results import PAGES


@pytest.mark.parametrize("module", MODULES.values())
def test_each_has_what_is_run(module: str) -> None:
    assert inspect.iscoroutinefunction(importlib.import_module(f"benchmarks.{module}").run)


def test_data_services_are_shown() -> None:
    text = "".join(page.read_text() for page in PAGES)
    shown = {
        part.partition(":")[0].strip()
        for marker in re.findall(r"<!-- figures (\w.*?) -->", text)
        for part in marker.split("|")
    }
    assert {name for name, module in MODULES.items() if module.startswith("data_services.")} <= shown
