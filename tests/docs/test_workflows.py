"""Workflows for people who fork the project: their syntax, and that what they run is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.layers import needs_layer
from tests.yaml_texts import read

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGET = re.compile(r"^(?:sudo \S+ )?make ([\w./-]+)", re.MULTILINE)


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in read(file.read_text())["jobs"].values() for step in job["steps"]]


def test_there_is_one_for_each_purpose() -> None:
    assert [file.stem for file in WORKFLOWS] == ["lint", "release", "test"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_targets_of_make_are_there(file: Path) -> None:
    """make itself finds them, also those of patterns: nothing is run."""
    targets = {found for step in steps(file) for found in TARGET.findall(step.get("run", ""))}
    assert targets
    for target in targets:
        command = ["make", "--dry-run", "--always-make", target]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_rights_are_as_few_as_can_be(file: Path) -> None:
    workflow = read(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert [step for step in steps(file) if "secrets." in str(step)] == [
        step for step in steps(file) if step.get("name") == "sign"
    ]


@needs_layer("release", "check_jsonschema")
def test_their_syntax() -> None:
    """By the schema of GitHub's workflows that comes with check-jsonschema: no network."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    ended = subprocess.run([*command, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
