"""Programs that a machine may lack are looked for in one place, and each has a package."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import programs as kubernetes
from cluster.gobuild import Missing
from cluster.programs import PACKAGES
from tests import programs
from tests.crash.kills.kinds import KINDS
from tests.crash.kills.power import POWERED

TESTS = Path(__file__).parents[2]
ALLOWED = {"vm/uml.py", "vm/qemu.py", "unit/scripts/test_run_tests.py"}
"""The first two are programs of their own that say what they lack; the last is about what is not to be found."""


def _looks_for_programs(text: str) -> Iterator[int]:
    """Lines that use shutil.which(), or get it under a name."""
    if not re.search(r"\.\s*which\b|\bshutil\b.*\bwhich\b", text, re.DOTALL):  # most have the word in a sentence
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr == "which":
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "shutil" and "which" in {a.name for a in node.names}:
            yield node.lineno


def test_a_look_at_path_is_found() -> None:
    assert list(_looks_for_programs("import shutil\nshutil.which('lvm')\nfrom shutil import which as w")) == [3, 2]


def test_no_test_looks_for_programs_by_itself() -> None:
    found = {str(path.relative_to(TESTS)): list(_looks_for_programs(path.read_text())) for path in TESTS.rglob("*.py")}
    assert {path for path, lines in found.items() if lines} == ALLOWED


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in PATH, of which the programs there and not-there have packages."""
    monkeypatch.setattr(kubernetes, "PACKAGES", {"is-there": "a", "not-there": "b", "nor-this": "c"})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "is-there").touch(0o755)
    return tmp_path


def test_one_that_is_not_there_names_its_package(known: Path) -> None:
    assert programs.find("is-there") == known / "is-there"
    with pytest.raises(Missing, match=r"^needs not-there \(Debian: apt-get install b\)$"):
        programs.find("not-there")
    reason = "needs not-there (Debian: apt-get install b); needs nor-this (Debian: apt-get install c)"
    assert programs.absent("not-there", "is-there", "nor-this", "not-there") == reason
    assert programs.absent("is-there") == ""


def test_a_test_is_skipped_with_the_reason(known: Path) -> None:
    assert programs.found("is-there") == known / "is-there"
    with pytest.raises(pytest.skip.Exception, match="needs not-there"):
        programs.found("not-there")
    assert programs.needs("not-there").args == (True,)
    assert programs.needs("is-there").args == (False,)


def test_one_without_a_package_fails_also_where_it_is_there(known: Path) -> None:
    with pytest.raises(KeyError):
        programs.find("sh")


def test_what_is_built_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert programs.absent("sanity") == "not built: sanity (make programs)"
    assert programs.absent("velero") == "not built: velero (make test-velero)"


def test_what_pools_need_has_packages() -> None:
    needed = {name for kind in KINDS.values() for name in kind.programs}
    assert needed | {name for kind in POWERED.values() for name in (*kind.programs, kind.disk[0])} <= set(PACKAGES)
