"""The exact versions of constraints/: what every Python can have, complete, and of one mind. Wheels are made here."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts import check_constraints
from tests.layers import needs_layer

needs_uv = needs_layer("resolve", "uv")
ROOT = Path(__file__).parents[3]
PROJECT = """
[project]
dependencies = ["server>=1"]
[dependency-groups]
run = []
test = []
docs = ["pages>=1"]
"""
PINS = {"run": "server==1.0\nwire==2.0\n", "test": "", "docs": "pages==3.0\n"}


def wheel(folder: Path, name: str, version: str, *metadata: str, tag: str = "py3-none-any") -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as archive:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata, ""]
        archive.writestr(f"{info}/METADATA", "\n".join(lines))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with three layers, and an index beside it that has all Pythons' wheels."""
    (tmp_path / "constraints").mkdir()
    (tmp_path / "index").mkdir()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for layer, text in PINS.items():
        (tmp_path / "constraints" / f"{layer}.txt").write_text(text)
    wheel(tmp_path / "index", "server", "1.0", "Requires-Dist: wire", "Requires-Dist: old; python_version < '3.12'")
    wheel(tmp_path / "index", "wire", "2.0")
    wheel(tmp_path / "index", "old", "1.0")
    wheel(tmp_path / "index", "pages", "3.0", "Requires-Python: >=3.11")
    wheel(tmp_path / "index", "pages", "3.1", "Requires-Python: >=3.11.5")
    wheel(tmp_path / "index", "pages", "3.2", tag="cp312-cp312-manylinux_2_28_x86_64")
    pin(tmp_path, "run", PINS["run"] + "old==1.0\n")
    return tmp_path


def pin(tree: Path, layer: str, text: str) -> None:
    (tree / "constraints" / f"{layer}.txt").write_text(text)


def faults(tree: Path) -> list[str]:
    options = ["--no-index", f"--find-links={tree}/index", f"--cache-dir={tree}/cache"]
    return list(check_constraints.faults(tree, options))


@pytest.mark.slow
@needs_uv
def test_versions_that_every_python_has(tree: Path) -> None:
    assert faults(tree) == []


@pytest.mark.slow
@needs_uv
def test_a_version_that_debian_12_cannot_have(tree: Path) -> None:
    """As pymdown-extensions 13.1, which wants Python 3.11.5."""
    pin(tree, "docs", "pages==3.1\n")
    found = faults(tree)
    assert len(found) == 2 * len(check_constraints.MACHINES)
    for fault, python in zip(found[:: len(check_constraints.MACHINES)], ("3.11.0", "3.11.2"), strict=True):
        assert fault.startswith(f"constraints/docs.txt: Python {python} on x86_64")
        assert "Python >=3.11.5" in fault


@pytest.mark.slow
@needs_uv
def test_a_version_without_wheels_for_some(tree: Path) -> None:
    pin(tree, "docs", "pages==3.2\n")
    lacking = {tuple(fault.split()[2:5:2]) for fault in faults(tree)}
    every = {(python, machine) for python in check_constraints.PYTHONS for machine in check_constraints.MACHINES}
    assert every - lacking == {("3.12.0", "x86_64-manylinux_2_28")}


@pytest.mark.slow
@needs_uv
def test_what_is_not_pinned_and_what_nothing_needs(tree: Path) -> None:
    pin(tree, "run", "server==1.0\nold==1.0\n")
    pin(tree, "docs", "pages==3.0\nforgotten==9\n")
    found = set(faults(tree))
    assert "constraints/run.txt: Python 3.14.0 wants wire: add wire==2.0" in found
    assert "constraints/docs.txt: nothing needs forgotten: remove it" in found


def test_layers_that_contradict_each_other() -> None:
    pinned = {"run": {"a": "1"}, "docs": {"b": "1", "a": "1"}, "test": {"b": "2"}}
    assert list(check_constraints._contradictions(pinned)) == [
        "constraints/docs.txt: a is in run.txt already: remove it",
        "constraints/test.txt: b==2, but 1 in docs.txt; write the same in both",
    ]


def test_a_line_that_is_no_exact_version(tree: Path) -> None:
    pin(tree, "docs", "pages>=3\n")
    with pytest.raises(ValueError, match=r"constraints/docs.txt: pages>=3: not an exact version"):
        check_constraints.pins(tree, "docs")


@needs_uv
@pytest.mark.skipif(os.geteuid() != 0, reason="taking the network away needs root")
@pytest.mark.real
def test_without_a_network_a_sentence_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "UV_CACHE_DIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "UV_HTTP_RETRIES": "0"}
    ended = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "scripts.check_constraints"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("constraints/: not checked, as no package index can be reached: ")
    assert len(ended.stdout.splitlines()) == 1


@needs_uv
@pytest.mark.real
@pytest.mark.timeout(1800)  # the first time, uv asks the index for a hundred packages
def test_our_own_versions() -> None:
    """Remembered until a file changes."""
    if check_constraints.mark(ROOT).exists():
        return
    try:
        assert list(check_constraints.faults(ROOT)) == []
    except check_constraints.Unreachable as failure:
        pytest.skip(f"no package index can be reached: {failure}")
    check_constraints.remember(ROOT)


@needs_uv
def test_the_extra_that_stands_for_itself_is_complete_for_every_python(tree: Path) -> None:
    pin(tree, "cinder", "server==1.0\nwire==2.0\n")
    wants = [f"constraints/cinder.txt: Python {python} wants old: add old==1.0" for python in ("3.11.0", "3.11.2")]
    assert sorted(set(faults(tree))) == wants
    pin(tree, "cinder", "server==1.0\nwire==2.0\nold==1.0\n")
    assert faults(tree) == []
