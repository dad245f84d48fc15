"""Docstrings name the errors that a caller may see as `Raises: Name`, and each name is a class; properties are nouns."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "src").rglob("*.py") if "_proto" not in path.parts)
WITHOUT_COLON = re.compile(r"(?:^|[.;)]\s|\n\s*)Raises (?!it |the first|an error for|when )[A-Za-z0-9]")
SENTENCE = re.compile(r"\bRaises: ([^.]*)")
CLASS = re.compile(r"\b[A-Z][A-Za-z]+Error\b")


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def faults(text: str, classes: set[str]) -> list[str]:
    """What a docstring says of errors in another form, and names in it that are no class."""
    named = {name for sentence in SENTENCE.findall(text) for name in CLASS.findall(sentence)}
    return [*WITHOUT_COLON.findall(text), *sorted(named - classes)]


def test_faults_are_found() -> None:
    text = "Do it. Raises OSError.\n\n    Raises: LostError, ValueError."
    assert faults(text, {"ValueError"}) == [". Raises O", "LostError"]
    assert faults("Tell a failure. Raises it where it is final. Raises: OSError.", {"OSError"}) == []


def test_errors_are_named_in_one_form_and_exist() -> None:
    trees = {path: ast.parse(path.read_text()) for path in FILES}
    classes = {*dir(builtins), "ValidationError", "YAMLError", "IncompleteReadError"}  # of libraries
    for tree in trees.values():
        classes |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = {
        str(path.relative_to(ROOT)): wrong
        for path, tree in trees.items()
        for text in docstrings(tree)
        if (wrong := faults(text, classes))
    }
    assert found == {}


def test_a_property_is_described_by_a_noun_phrase() -> None:
    """A function that does something begins with an imperative, as "Return the volume"; a property is a value."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) in ("property", "cached_property") for decorator in node.decorator_list)
        and (ast.get_docstring(node) or "").startswith(("Return ", "Returns ", "Get "))
    ]
    assert found == []
