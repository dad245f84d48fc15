"""The tag of a release: what is no tag to make a release of is rejected, with a sentence that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from deploy.release import tag
from deploy.release.tag import Rejected

ROOT = Path(__file__).parents[3]
PLACES = ("pyproject.toml", "box/pyproject.toml", "src/tonnage/__init__.py", "deploy/helm/tonnage/Chart.yaml")
AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@example.test")


def git(tree: Path, *words: str) -> None:
    subprocess.run(["git", *AUTHOR, *words], cwd=tree, check=True, capture_output=True, env={**os.environ, "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"})  # fmt: skip


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message=A change")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of this tree that have the version, in a repository of their own, with the tag v7.8.9."""
    for file in PLACES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    tag.set_version(tmp_path, "7.8.9")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 7.8.9\n\nAll of it.\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    git(tmp_path, "tag", "v7.8.9")
    return tmp_path


def test_this_tree_has_one_version() -> None:
    assert len({version for _, version in tag.versions(ROOT)}) == 1


@pytest.mark.parametrize(
    "words", [("v7.8.9",), ("--annotate", "--message=Release", "v7.8.9")], ids=["plain", "annotated"]
)
def test_a_clean_tag(tree: Path, words: tuple[str, ...]) -> None:
    git(tree, "tag", "--force", *words)
    found = tag.check(tree, "7.8.9")
    assert (found.name, found.time, len(found.commit)) == ("v7.8.9", 1767225600, 40)


def rejected(tree: Path, *words: str, version: str = "7.8.9") -> None:
    with pytest.raises(Rejected) as raised:
        tag.check(tree, version)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("version", ["7.8", "v7.8.9", "7.8.9rc1", "", "7.8.9/../x"])
def test_a_version_of_another_form(tree: Path, version: str) -> None:
    rejected(tree, repr(version), "MAJOR.MINOR.PATCH", version=version)
    with pytest.raises(Rejected, match=r"MAJOR\.MINOR\.PATCH"):
        tag.set_version(tree, version)


@pytest.mark.parametrize("file", ["CHANGELOG.md", "new.py"])
def test_a_tree_that_is_not_clean(tree: Path, file: str) -> None:
    with (tree / file).open("a") as out:
        out.write("more\n")
    rejected(tree, "v7.8.9: the tree is not clean", file, "commit these files or remove them")


def test_no_tag(tree: Path) -> None:
    git(tree, "tag", "--delete", "v7.8.9")
    git(tree, "tag", "v7.8.90")
    rejected(tree, "v7.8.9: there is no such tag", "git tag --annotate v7.8.9")


def test_a_version_that_exists_on_another_commit(tree: Path) -> None:
    (tree / "new.py").touch()
    commit(tree)
    rejected(tree, "v7.8.9: it exists on commit", "a version is released once")


@pytest.mark.parametrize("file", PLACES)
def test_a_file_with_another_version(tree: Path, file: str) -> None:
    path = tree / file
    path.write_text(path.read_text().replace("7.8.9", "7.8.8"))
    commit(tree)
    git(tree, "tag", "--force", "v7.8.9")
    rejected(tree, f"v7.8.9: {file}", "has 7.8.8", "make version VERSION=7.8.9")


def test_no_section_in_the_changelog(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## 7.8.90\n")
    commit(tree)
    git(tree, "tag", "--force", "v7.8.9")
    rejected(tree, "v7.8.9: CHANGELOG.md has no section 7.8.9")


def test_no_repository(tmp_path: Path) -> None:
    rejected(tmp_path, str(tmp_path), "git status", "in a clone of the repository")
