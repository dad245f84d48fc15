"""Rules that hold for all files of tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]


@cache
def trees() -> dict[str, ast.Module]:
    """Every file of tests, parsed, by its path."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules that a file imports, and what it imports of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{name.name}" for name in node.names)


def test_nothing_is_imported_from_conftest() -> None:
    """Helpers have modules of their own, with names that say what is in them."""
    found = {file: [name for name in imported(tree) if "conftest" in name.split(".")] for file, tree in trees().items()}
    assert {file: names for file, names in found.items() if names} == {}
