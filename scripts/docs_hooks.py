"""Links of the documentation to files of the repository, for MkDocs.

A page links to a repository file by its relative path, as on a code host: `[example](../examples/pod-ephemeral.yaml)`.
The site has a copy of each such file below repository/, so links work without a network and for the version at hand.
The Markdown files of the repository's root are pages there. A link to a file that does not exist is left as it is:
MkDocs warns of it, and a strict build fails.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

COPIES = "repository"
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root's Markdown files as pages."""
    root = _root(config)
    for name in PAGES:
        files.append(File.generated(config, f"{COPIES}/{name}", content=(root / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ into links to copies, outside of code blocks."""
    root = _root(config)
    docs = Path(config.docs_dir).relative_to(root).as_posix()
    uri = page.file.src_uri
    origin = uri.removeprefix(f"{COPIES}/") if uri.startswith(f"{COPIES}/") else f"{docs}/{uri}"

    def rewritten(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(origin), link[1]))
        if target.startswith(f"{docs}/"):
            there = target.removeprefix(f"{docs}/")
        elif (root / target).is_file() and not target.startswith(".."):
            there = f"{COPIES}/{target}"
            if files.get_file_from_path(there) is None:
                files.append(File.generated(config, there, abs_src_path=str(root / target)))
        else:
            return link[0]
        return os.path.relpath(there, os.path.dirname(uri) or ".") + (link[2] or "")

    parts = re.split(r"(^```.*?^```|``[^`]*``|`[^`\n]*`)", markdown, flags=re.MULTILINE | re.DOTALL)
    # A link's own text may be code: only its target counts, and that is never within backquotes.
    return "".join(part if index % 2 else _LINK.sub(rewritten, part) for index, part in enumerate(parts))


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path or "mkdocs.yml").resolve().parent
