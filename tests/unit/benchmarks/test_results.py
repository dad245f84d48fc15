"""Results of benchmarks: saved with their machine, and shown in pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks import results
from benchmarks.figure import Figure

RATE = Figure("rate", 40, "pods/s", 10, "Go:", at_least=5)
PAGE = "before\n<!-- figures box -->\nold\n<!-- figures: end -->\nafter\n"


def test_a_benchmark_is_saved_with_its_commit_and_machine_and_replaces_only_its_own(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results.save("box", [RATE], 5, file)
    results.save("driver", [Figure("calls", 1)], 3, file)
    results.save("box", [Figure("rate", 50)], 7, file)
    found = json.loads(file.read_text())
    assert [found["box"]["runs"], found["driver"]["runs"]] == [7, 3]
    assert found["box"]["figures"] == [{"name": "rate", "value": 50}]
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", found["box"]["commit"])
    assert found["box"]["machine"]["cores"] >= 1


def test_a_page_shows_what_was_saved_and_nothing_else_of_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results.save("box", [RATE, Figure("stuck", 0, at_most=0)], 5, file)
    shown = results.tables(PAGE, file)
    assert shown.startswith("before\n<!-- figures box -->\n`python -m benchmarks box`, commit ")
    assert "| rate | 40 pods/s | Go: 10 | 4 x | at least 5 x | missed |\n| stuck | 0 |" in shown
    assert shown.endswith("\n<!-- figures: end -->\nafter\n")
    assert results.tables(shown, file) == shown
    assert "stuck" not in results.tables(PAGE.replace("figures box", "figures box: rate"), file)


def test_a_table_may_have_figures_of_several_benchmarks(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results.save("box", [RATE, Figure("stuck", 0)], 5, file)
    results.save("driver", [Figure("calls", 1)], 3, file)
    shown = results.tables(PAGE.replace("figures box", "figures box: stuck | driver"), file)
    assert re.search(r"benchmarks box`, .* median of 5; `python -m benchmarks driver`, .* median of 3: ", shown)
    assert "| stuck | 0 |" in shown
    assert "| calls | 1 |" in shown
    assert "rate" not in shown
    assert results.tables(shown, file) == shown


def test_a_benchmark_that_was_never_saved_is_named(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    shown = results.tables(PAGE.replace("figures box", "figures grow: rate | idle"), file.with_name("none"))
    assert "Not measured yet: `python -m benchmarks grow idle --save`." in shown


@pytest.mark.parametrize("marker", ["figures none", "figures box: rate; other"])
def test_a_page_that_names_what_was_not_saved_is_an_error(tmp_path: Path, marker: str) -> None:
    file = tmp_path / "results.json"
    results.save("box", [RATE], 5, file)
    with pytest.raises(results.UnknownFigureError):
        results.tables(PAGE.replace("figures box", marker), file)


@pytest.mark.parametrize("page", results.PAGES, ids=str)
def test_the_pages_show_the_saved_results(page: Path) -> None:
    assert results.tables(page.read_text()) == page.read_text()
