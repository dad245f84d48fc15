"""The documentation builds as a site: strict links, nothing from a network, and each page says who it is for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.layers import needs_layer

needs_docs = needs_layer("docs", "mkdocs")
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "mkdocs", "build", "--site-dir"]  # --quiet would hide warnings from strict
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [*COMMAND, str(site)], cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, without a warning."""
    there = tmp_path_factory.mktemp("site")
    ended = build(ROOT, there)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WARNING" not in ended.stdout + ended.stderr
    return there


@pytest.mark.slow
@needs_docs
def test_pages_load_nothing_from_a_network(site: Path) -> None:
    """Canonical and plain links may lead out; what a browser fetches by itself may not."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    assert {(p.name, m[0]) for p in pages for m in LOADED.finditer(p.read_text())} == set()
    assert {p.name for p in site.rglob("*.css") if re.search(r"url\((https?:)?//|@import", p.read_text())} == set()


@needs_docs
def test_the_site_can_be_searched(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "GetCapacity" in index
    assert "Labels, annotations and other keys" in index


@needs_docs
def test_a_link_to_a_repository_file_leads_to_its_copy(site: Path) -> None:
    example = "repository/examples/pod-ephemeral.yaml"
    assert (site / example).read_text() == (ROOT / "examples" / "pod-ephemeral.yaml").read_text()
    assert 'href="examples/pod-ephemeral.yaml"' in (site / "repository" / "index.html").read_text()


NOWHERE = {
    "../examples/no-such-file.yaml": "the target is not found",
    "../../outside.md": "the target is not found",
    "no-such-page.md": "the target is not found",
    "install.md#no-such-heading": "does not contain an anchor '#no-such-heading'",
}
"""A link -> what the build says of it."""


@needs_docs
@pytest.mark.real  # not in make check: it builds the site
def test_links_that_lead_nowhere_fail_the_build(tmp_path: Path) -> None:
    """Each is a warning, and any warning fails it."""
    for name in ("docs", "examples", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for path in [*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "LICENSE"]:
        shutil.copy(path, tmp_path)
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.writelines(f"\n[x]({link})\n" for link in NOWHERE)
    ended = build(tmp_path, tmp_path / "site")
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0
    warnings = [line for line in said.splitlines() if line.startswith("WARNING")]
    for link, complaint in NOWHERE.items():
        assert [line for line in warnings if f"'{link}'" in line and complaint in line], said
    assert f"Aborted with {len(NOWHERE)} warnings in strict mode!" in said


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name)
def test_a_page_begins_with_who_it_is_for(page: Path) -> None:
    title, _, text = page.read_text().partition("\n\n")
    assert title.startswith("# ")
    assert text.startswith("This page is for ")
