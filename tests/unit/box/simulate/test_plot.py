"""Pictures of runs: what is drawn, and what is rejected before anything runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.layers import needs_layer

from tonnage.base.errors import HostError, InvalidError, UnsupportedError
from tonnage_box.simulate import plot
from tonnage_box.simulate.tally import Series, Tally

pytestmark = needs_layer("plots", "matplotlib")

RUNS = {
    "least-allocated": Series([1.0, 2.0], [0, 3], [0.1, 0.9], [2.0], [0.2], {0.1: 0.5, 30.0: 0.0}),
    "tightest-fit": Series([1.0, 2.0], [0, 1], [0.1, 0.95], [2.0], [0.1], {0.0: 0.5, 12.0: 0.001}),
}


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidError, match=r"the name must end in \.png or \.svg"):
        plot.check(tmp_path / "runs.pdf")
    with pytest.raises(InvalidError, match=r"there is no folder .*no-such"):
        plot.check(tmp_path / "no-such" / "runs.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(HostError, match=r"folder\.png: Is a directory"):
        plot.draw(tmp_path / "folder.png", "", RUNS)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'tonnage\[plots\]'"):
        plot.check(tmp_path / "runs.png")


def test_policies_with_the_same_values_are_all_seen(tmp_path: Path) -> None:
    same = [float(number) for number in range(100)]
    run = Series(same, [1] * 100, same, same, same, {0.1: 0.5, 1.0: 0.001})
    file = tmp_path / "runs.svg"
    plot.draw(file, "three alike", {"a": run, "b": run, "c": run})
    found = re.findall(r"stroke-width: ([0-9.]+)[^>]*", file.read_text().partition("pods without a node")[0])
    assert len({float(width) for width in found} & {1.2, 2.5, 3.8}) == 3


def test_the_tail_of_queueing_has_its_share_of_the_picture() -> None:
    tally = Tally()
    tally.waits.extend(float(number) for number in range(1, 10_001))
    run = Series()
    run.finish(tally, hours=1.0)
    shares = list(run.queueing.values())
    assert shares == sorted(shares, reverse=True)
    for least, most in ((0.001, 0.01), (0.01, 0.1), (0.1, 1.0)):
        assert len([share for share in shares if least <= share < most]) >= 15
    assert run.queueing[10_000.0] == 0
