"""Rules that hold for all files of tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHECKS = frozenset(
    {
        # of pytest, of ours and of Hypothesis
        "raises", "fail", "warns", "raises_nothing", "run_state_machine_as_test",
        # end in an error when what is waited for does not come; the second line: of a pod, of workloads
        "eventually", "until", "timeout", "wait_for",
        "phase", "gone", "event", "rolled_out", "settled", "everywhere",
        # of drivers and of nodes that are served
        "rejected", "told",
        # of what ran in a guest
        "check", "claims_return_and_make_way_the_oldest_first",
    }
)  # fmt: skip
"""Calls after which a test has looked at something: fixtures, and methods, whose bodies are not followed."""


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


@pytest.mark.slow
def test_nothing_is_imported_from_conftest() -> None:
    """Helpers have modules of their own, with names that say what is in them."""
    found = {file: [name for name in imported(tree) if "conftest" in name.split(".")] for file, tree in trees().items()}
    assert {file: names for file, names in found.items() if names} == {}


@dataclass(frozen=True)
class Looked:
    """What a function does, as far as the rule asks. asserts: by itself, or by the status that it expects (want=)."""

    name: str
    line: int
    asserts: bool
    calls: Set[str]

    def looks(self, checks: Set[str]) -> bool:
        """Whether it looks at something, given what else does."""
        return self.asserts or not checks.isdisjoint(self.calls)


def looked(function: ast.AST, name: str = "", line: int = 0) -> Looked:
    """Read a function, or any other code."""
    asserts, calls = False, set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called = node.func
            calls.add(getattr(called, "attr", "") or getattr(called, "id", ""))
            asserts |= any(keyword.arg == "want" for keyword in node.keywords)
            asserts |= isinstance(called, ast.Name) and called.id == "AssertionError"
        asserts |= isinstance(node, ast.Assert)
    return Looked(name, line, asserts, calls)


@cache
def functions(file: str) -> Sequence[Looked]:
    """Of a file, also those in others and in classes."""
    kinds = ast.FunctionDef, ast.AsyncFunctionDef
    return [looked(node, node.name, node.lineno) for node in ast.walk(trees()[file]) if isinstance(node, kinds)]


@cache
def own_checks(file: str) -> Set[str]:
    """Functions of a file that look at something, with those that it imports and those that call them."""
    checks = CHECKS | _imported_checks(trees()[file])
    helpers = [function for function in functions(file) if not function.name.startswith("test")]
    while more := {one.name for one in helpers if one.name not in checks and one.looks(checks)}:
        checks |= more
    return checks


def _imported_checks(tree: ast.Module) -> Set[str]:
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (file := f"{(node.module or '').replace('.', '/')}.py") in trees():
            found |= own_checks(file) & {name.name for name in node.names}
    return found


@pytest.mark.slow
def test_each_test_asserts_something() -> None:
    """By itself or by a helper. One whose only result is that nothing is raised says so: raises_nothing()."""
    silent = [
        f"{file}:{function.line} {function.name}"
        for file in trees()
        for function in functions(file)
        if function.name.startswith("test_") and not function.looks(own_checks(file))
    ]
    assert silent == []


@pytest.mark.parametrize("body", ["assert x", "raise AssertionError(x)", "api.get(x, want=404)", "with raises(X): x()"])
def test_what_counts_as_an_assertion(body: str) -> None:
    assert looked(ast.parse(body)).looks(CHECKS)
    assert not looked(ast.parse("y = do(x)\nraise ValueError(y)")).looks(CHECKS)
