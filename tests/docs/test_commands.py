"""What the documentation tells people to type exists: verbs and options of tonnage, targets of make."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tonnage.tools.cli.main import VERBS, build_parser

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`|^ {4}(\S[^\n]*)$", re.MULTILINE | re.DOTALL)
OTHERS = ("CHANGELOG.md",)
"""Pages that also name what was there before."""


def commands(page: Path, program: str) -> Iterator[str]:
    """The commands of a page that start a program, each on one line, up to a pipe or a comment."""
    for block in CODE.finditer(page.read_text()):
        text = next(group for group in block.groups() if group is not None).replace("\\\n", " ")
        yield from re.findall(rf"^\s*(?:\$ )?(?:sudo )?(?:\S*/)?{program} ([^|#\n;&]*)", text, re.MULTILINE)


@cache
def options(verb: str) -> frozenset[str]:
    """Every option of a verb and of its actions."""

    def all_of(parser: argparse.ArgumentParser) -> Iterator[str]:
        for action in parser._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for sub in action.choices.values():
                    yield from all_of(sub)

    top = build_parser(verb)
    verbs = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    return frozenset(all_of(verbs.choices[verb]))


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in OTHERS], ids=lambda p: p.name)
def test_verbs_and_options_exist(page: Path) -> None:
    for command in commands(page, "tonnage"):
        verb, *words = command.split() or [""]
        if not re.fullmatch(r"[a-z]+", verb):
            continue  # an option of the program itself, or VERB
        assert verb in VERBS, f"tonnage {command}"
        given = {w.strip("[]'\",.:)").partition("=")[0] for w in words if w.strip("[").startswith("--")}
        assert given <= options(verb), f"tonnage {command}: {sorted(given - options(verb))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_targets_of_make_exist(page: Path) -> None:
    rules = re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    named = {w for c in commands(page, "make") for w in c.split() if re.fullmatch(r"[a-z][a-z-]*", w)}
    assert named <= targets
