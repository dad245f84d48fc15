"""Lines of logs, for people and for machines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tonnage.observe import log


@pytest.fixture(autouse=True)
def _root() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def test_text_for_people_at_and_above_the_level() -> None:
    stream = io.StringIO()
    log.setup("info", stream=stream)
    logging.getLogger("tonnage.x").debug("left out")
    logging.getLogger("tonnage.x").warning("made volume=%s", "v")
    assert stream.getvalue().endswith(" W tonnage.x: made volume=v\n")
    assert "left out" not in stream.getvalue()


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
