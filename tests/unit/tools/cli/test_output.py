"""Terminal output: the same words plain and fancy."""

from __future__ import annotations

import io

import pytest

from tonnage.tools.cli.output import Output


@pytest.mark.parametrize("fancy", [False, True])
def test_every_word_is_there(fancy: bool) -> None:
    stream = io.StringIO()
    out = Output(stream, fancy=fancy)
    out.title("a title [x]")
    out.line("a line [y]")
    out.step("a step", "its detail")
    out.waits("a disk")
    out.table(("NAME", "SIZE"), [("a", "1Gi"), ("long name", "2Gi")])
    with out.waiting("for it"):
        pass
    shown = stream.getvalue()
    for words in ("a title [x]", "a line [y]", "a step", "its detail", "waiting for", "a disk", "NAME", "long name"):
        assert words in shown


def test_plain_columns_are_as_wide_as_their_widest_cell() -> None:
    stream = io.StringIO()
    Output(stream, fancy=False).table(("NAME", "SIZE"), [("a", "1Gi"), ("long name", "2Gi")])
    assert stream.getvalue().splitlines() == ["    NAME       SIZE", "    a          1Gi", "    long name  2Gi"]


def test_a_check_says_whether_it_held() -> None:
    stream = io.StringIO()
    out = Output(stream, fancy=False)
    out.check("one", held=True)
    out.check("two", held=False, detail="why")
    assert stream.getvalue() == "  [ok] one\n  [FAILED] two: why\n"
