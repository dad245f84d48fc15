"""What is counted of a file, and the limits of the code base that are held."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from scripts import measure

TEXT = '''"""A module that names other.py."""

# why
import os


class One:
    """Text."""

    kept: int = 1
    """What is kept."""

    def name(self) -> str:
        """Text
        of two lines."""
        return """a room
        in two lines""" + str(os.getpid())  # and why
'''

MOST_CHANGED = 40
"""Constants of modules that tests may change: what is not worth an argument, as paths of the machine."""


@pytest.fixture(scope="module")
def modules() -> Sequence[measure.Module]:
    return measure.modules()


def test_counts(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(TEXT)

    found = measure.measure(file)

    assert (found.lines, found.code, found.comments) == (17, 6, 2)
    assert (found.functions, found.classes) == ([5], ["One"])
    assert (found.words, found.files) == (["kept", "kept", "room"], ["other.py"])


@pytest.mark.slow
def test_no_folder_is_too_wide(modules: Sequence[measure.Module]) -> None:
    assert not measure.too_wide(modules)


@pytest.mark.slow
def test_no_class_name_is_used_twice(modules: Sequence[measure.Module]) -> None:
    assert not measure.doubled(modules)


@pytest.mark.slow
def test_folders_say_what_they_are(modules: Sequence[measure.Module]) -> None:
    """What it does; then who calls it, and what it may touch."""
    for module in modules:
        if module.path.name == "__init__.py" and module.folder != ".":
            head, _, rest = module.path.read_text().partition("\n\n")
            assert head.startswith('"""'), module.path
            assert rest.count(".") >= 2, module.path


@pytest.mark.slow
def test_no_docstring_names_a_file(modules: Sequence[measure.Module]) -> None:
    assert [f"{module.path}: {name}" for module in modules for name in module.files] == []


@pytest.mark.slow
def test_no_word_to_avoid(modules: Sequence[measure.Module]) -> None:
    """Neither in docstrings and messages nor in names."""
    assert {str(module.path): module.words for module in modules if module.words} == {}


@pytest.mark.slow
def test_each_module_has_a_test_of_its_name_or_is_listed(modules: Sequence[measure.Module]) -> None:
    assert set(measure.untested(modules)) == set(measure.TESTED_BY)


def test_constants_that_tests_change(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        'm.setattr(module, "MOST", 1)\nm.setattr("a.b._PAUSE_S2", 0)\nm.setattr(Class, "method", f)\nm.setattr("a.B.c", 1)\n'
    )
    assert measure.changed_constants(tmp_path) == [f"{tmp_path}/test_x.py:1", f"{tmp_path}/test_x.py:2"]
    assert measure.lines_of_tests(tmp_path) == 4


@pytest.mark.slow
def test_tests_change_few_constants() -> None:
    """Time, limits and paces come in as arguments, or are attributes of what uses them."""
    assert len(measure.changed_constants()) <= MOST_CHANGED
