"""Pictures of runs: what is drawn, and what is refused before anything runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tonnage.errors import HostError, Invalid, Unsupported
from tonnage.simulate import plot
from tonnage.simulate.tally import Series

RUNS = {
    "least-allocated": Series([1.0, 2.0], [0, 3], [0.1, 0.9], [2.0], [0.2], [0.1, 0.1, 30.0]),
    "tightest-fit": Series([1.0, 2.0], [0, 1], [0.1, 0.95], [2.0], [0.1], [0.1, 0.1, 12.0]),
}


def test_an_svg_names_what_it_shows(tmp_path: Path) -> None:
    file = tmp_path / "runs.svg"
    plot.draw(file, "ci-burst.yaml on 3 nodes", RUNS)
    text = file.read_text()
    for words in ("ci-burst.yaml on 3 nodes", *RUNS, "pods without a node", "stranded storage", "queueing time"):
        assert f"<!-- {words} -->" in text
    again = tmp_path / "again.svg"
    plot.draw(again, "ci-burst.yaml on 3 nodes", RUNS)
    assert again.read_text() == text


def test_a_png_is_one(tmp_path: Path) -> None:
    file = tmp_path / "runs.PNG"
    plot.draw(file, "nothing came", {"least-allocated": Series()})
    assert file.read_bytes().startswith(b"\x89PNG\r\n")


def test_what_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match=r"the name must end in \.png or \.svg"):
        plot.check(tmp_path / "runs.pdf")
    with pytest.raises(Invalid, match=r"there is no folder .*no-such"):
        plot.check(tmp_path / "no-such" / "runs.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(HostError, match=r"folder\.png: Is a directory"):
        plot.draw(tmp_path / "folder.png", "", RUNS)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Unsupported, match=r"pip install 'tonnage\[plots\]'"):
        plot.check(tmp_path / "runs.png")
