"""Files for contributors name what is there: hooks run the project's own tools, attributes match files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
GENERATED = [
    line.split()[0]
    for line in (ROOT / ".gitattributes").read_text().splitlines()
    if line.endswith(" linguist-generated")
]


def test_hooks_download_nothing() -> None:
    assert [repo["repo"] for repo in HOOKS] == ["local"]
    assert {hook["language"] for hook in HOOKS[0]["hooks"]} == {"system"}


@pytest.mark.parametrize("hook", HOOKS[0]["hooks"], ids=lambda hook: hook["id"])
def test_a_hook_starts_a_tool_of_the_environment(hook: dict[str, Any]) -> None:
    """Its options too: --help after them is an error where one is not known."""
    program, *options = hook["entry"].split()
    assert program.startswith(".venv/bin/")
    tool = str(Path(sys.executable).with_name(Path(program).name))
    ended = subprocess.run([tool, *options, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("pattern", GENERATED)
def test_generated_files_are_there(pattern: str) -> None:
    assert list(ROOT.glob(pattern.replace("/**", "/**/*")))


def test_the_readme_fits_on_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
