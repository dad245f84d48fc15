"""Lines of logs, for people and for machines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tonnage
from tonnage.base.observe import log


@pytest.fixture(autouse=True)
def _root() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    for name in log.DELETIONS:
        logging.getLogger(name).setLevel(logging.NOTSET)
    root.handlers[:] = before
    root.setLevel(level)


def test_text_for_people_at_and_above_the_level() -> None:
    stream = io.StringIO()
    log.setup("info", stream=stream)
    logging.getLogger("tonnage.x").debug("left out")
    logging.getLogger("tonnage.x").warning("made volume=%s", "v")
    assert stream.getvalue().endswith(" W tonnage.x: made volume=v\n")
    assert "left out" not in stream.getvalue()


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("warning", True), ("error", False)])
def test_deletions_are_named_with_their_date_also_in_a_quiet_log(level: str, *, shown: bool) -> None:
    stream = io.StringIO()
    log.setup(level, stream=stream)
    for name in log.DELETIONS:
        logging.getLogger(name).info("deleted what=%s", name)
    lines = stream.getvalue().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in lines] == [
        f"I {name}: deleted what={name}" for name in log.DELETIONS if shown
    ]


def test_all_that_names_deletions_logs_there() -> None:
    source = Path(tonnage.__file__).parents[1]
    named = (path for path in source.rglob("*.py") if '"deleted what=' in path.read_text())
    assert {".".join(path.relative_to(source).with_suffix("").parts) for path in named} == set(log.DELETIONS)


def test_one_object_of_json_a_line_with_the_error() -> None:
    stream = io.StringIO()
    log.setup("debug", as_json=True, stream=stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("tonnage.x").exception("failed")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "tonnage.x", "failed")
    assert "ValueError: two\nlines" in found["error"]
