"""The row of a release in the table of docs/compatibility.md, and what a run of pytest came to."""

from __future__ import annotations

import datetime
from pathlib import Path

from scripts.compat import PAGE, Outcome, read, row, with_row

HEAD = "| release | version | tested |\n| --- | --- | --- |\n"
TODAY = datetime.date(2026, 11, 30)


def test_a_row() -> None:
    assert (
        row("1.35", "v1.35.4", Outcome(200, 1, 7, 19.6), today=TODAY, commit="0123abcd")
        == "| 1.35 | v1.35.4 | 2026-11-30 | 0123abcd | 200 | 1 | 7 | 20 |"
    )


def test_a_row_takes_the_place_of_the_former_one_and_others_stay() -> None:
    page = f"Before.\n\n{HEAD}| 1.36 | a |\n| 1.9 | b |\n\nAfter.\n"
    first = with_row(page, "| 1.30 | c |")
    assert first == f"Before.\n\n{HEAD}| 1.36 | a |\n| 1.30 | c |\n| 1.9 | b |\n\nAfter.\n"
    assert with_row(first, "| 1.30 | d |") == first.replace("| c |", "| d |")


def test_the_page_has_the_table() -> None:
    written = row("1.99", "v1.99.0", Outcome(1, 0, 0, 1.0), today=TODAY, commit="0123abcd")
    assert written in with_row(PAGE.read_text(), written).splitlines()


def test_errors_count_as_failed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    suite = '<testsuite name="pytest" errors="2" failures="1" skipped="4" tests="17" time="90.0"/>'
    report.write_text(f"<testsuites>{suite}</testsuites>")
    assert read(report) == Outcome(passed=10, failed=3, skipped=4, minutes=1.5)
