"""The marks of reclaimed volumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import HostError, PreconditionError
from tonnage.csi.driver.reclaimed import Reclaimed


def test_marks_survive_and_end(tmp_path: Path) -> None:
    Reclaimed(tmp_path / "state").add("a", "v", "done")
    found = Reclaimed(tmp_path / "state")
    assert (found.why("a", "v"), found.why("b", "v"), found.why("a", "w")) == ("done", "", "")
    with pytest.raises(PreconditionError, match="volume a/v has no data any more: done"):
        found.check("a", "v")
    found.add("a", "v", "another")
    assert found.why("a", "v") == "done"
    found.remove("a", "v")
    found.remove("a", "v")
    found.check("a", "v")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_a_mark_that_cannot_be_read_is_an_error_and_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "reclaimed" / "a" / "v").mkdir(parents=True)
    with pytest.raises(HostError, match="cannot see whether volume v was reclaimed"):
        Reclaimed(tmp_path).check("a", "v")
