"""What is counted of a file, and the limits of the code base that are held."""

from __future__ import annotations

from pathlib import Path

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


def test_counts(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(TEXT)

    found = measure.measure(file)

    assert (found.lines, found.code, found.comments) == (17, 6, 2)
    assert (found.functions, found.classes) == ([5], ["One"])
    assert (found.words, found.files) == (["kept", "room"], ["other.py"])


def test_no_folder_is_too_wide() -> None:
    assert not measure.too_wide(measure.modules())


def test_no_class_name_is_used_twice() -> None:
    assert not measure.doubled(measure.modules())


def test_folders_say_what_they_are() -> None:
    """What it does; then who calls it, and what it may touch."""
    for module in measure.modules():
        if module.path.name == "__init__.py" and module.folder != ".":
            head, _, rest = module.path.read_text().partition("\n\n")
            assert head.startswith('"""'), module.path
            assert rest.count(".") >= 2, module.path


def test_no_docstring_names_a_file() -> None:
    assert [f"{module.path}: {name}" for module in measure.modules() for name in module.files] == []
