"""A kind has one folder, that of its group: no other code of the API server names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tonnage_box.apiserver import kinds
from tonnage_box.apiserver.kinds import groups

SERVER = Path(kinds.__file__).parents[1]
EXCEPTIONS = {
    ("access", "rbac"): "roles and bindings are what it decides by",
    ("access", "core"): "service accounts are users",
    ("access", "reviews"): "it answers the questions",
    ("admission", "core"): "its plugins change pods and claims",
    ("admission", "node"): "the plugin RuntimeClass",
    ("admission", "policy"): "the plugin Priority",
    ("rest/event_expiry.py", "core"): "Events alone expire",
    ("rest/object_meta.py", "core"): "a namespace has finalizers in its spec",
    ("rest/subresources.py", "core"): "a binding names a Node",
    ("rest/subresources.py", "policy"): "an eviction asks budgets",
    ("validation/meta.py", "core"): "an Event may own nothing",
    ("kinds/apps", "core"): "claims that a StatefulSet makes; the selector of nodes",
    ("kinds/core", "apps"): "a notice says what to use",
    ("kinds/core", "storage"): "columns of classes, and the scope of quotas",
    ("kinds/core", "certificates"): "a projected volume of roots",
    ("kinds/network", "core"): "columns; parameters of a namespace",
    ("kinds/rbac", "core"): "service accounts are subjects",
    ("kinds/storage", "core"): "the column Node",
}
"""(Where, group that is named there) -> why."""


def _homes() -> dict[str, set[str]]:
    """Kind -> the folders of its groups."""
    found: dict[str, set[str]] = {}
    for folder, rows in groups.GROUPS.items():
        for row in rows:
            found.setdefault(row.kind.kind, set()).add(folder)
    return found


HOMES = _homes()
WORD = re.compile(r"(?<![\w-])[A-Z][A-Za-z]+(?![\w-])")


def _texts(tree: ast.AST) -> Iterator[str]:
    """Strings that are no docstrings."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def named(path: str, text: str) -> set[tuple[str, str]]:
    """(kind, folder) of kinds of other groups that a file names. path: below the API server."""
    words = {word for found in _texts(ast.parse(text)) for word in WORD.findall(found)}
    own = path.split("/")[1] if path.startswith("kinds/") else ""
    return {(word, home) for word in words & HOMES.keys() if own not in HOMES[word] for home in HOMES[word]}


def excepted(path: str) -> set[str]:
    return {group for where, group in EXCEPTIONS if path == where or path.startswith(f"{where}/")}


def test_a_kind_is_named_in_the_folder_of_its_group_only() -> None:
    found = {}
    for file in sorted(SERVER.rglob("*.py")):
        path = str(file.relative_to(SERVER))
        if wrong := {kind for kind, home in named(path, file.read_text()) if not HOMES[kind] & excepted(path)}:
            found[path] = wrong
    assert found == {}


def test_no_exception_is_idle() -> None:
    used = set()
    for file in sorted(SERVER.rglob("*.py")):
        path = str(file.relative_to(SERVER))
        groups_of = {home for _, home in named(path, file.read_text())}
        used |= {
            (where, g) for where, g in EXCEPTIONS if g in groups_of and (path == where or path.startswith(f"{where}/"))
        }
    assert used == EXCEPTIONS.keys()


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        pytest.param("rest/writes.py", 'SHOWN = ("ResourceQuota",)', {"ResourceQuota"}, id="list"),
        pytest.param("rest/writes.py", 'raise ValueError(f"no CronJob {name}")', {"CronJob"}, id="message"),
        pytest.param("kinds/apps/rows.py", 'X = "CronJob"', {"CronJob"}, id="other group"),
        pytest.param("kinds/batch/rows.py", 'X = "CronJob"', set(), id="own group"),
        pytest.param("rest/writes.py", '"""CronJob."""\nX = "Content-Type"', set(), id="docstring and header"),
    ],
)
def test_names_are_found(path: str, text: str, found: set[str]) -> None:
    assert {kind for kind, _ in named(path, text)} == found


def test_every_folder_is_in_the_table() -> None:
    folders = {file.parent.name for file in Path(kinds.__file__).parent.glob("*/schema*")}
    assert folders - {"shared"} == groups.GROUPS.keys()
