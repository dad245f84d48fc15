"""What the suite's JUnit files say, and the table of it in docs/conformance.md."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- upstream: written by make test-upstream -->", "<!-- upstream: end -->"


@dataclass(frozen=True)
class Result:
    """Names of tests that ran; how many were skipped, as nothing that tonnage offers."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: int

    def line(self) -> str:
        """In words."""
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {self.skipped} skipped"


def read(junit: Path) -> Result:
    """One file. What the focus leaves out is not counted. Raises FileNotFoundError where the suite did not begin."""
    passed, failed, skipped = [], [], 0
    for case in xml.parse(junit).getroot().iter("testcase"):
        name = case.get("name", "")
        if not name.startswith("[It] "):
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(name)
            continue
        name = name.removeprefix("[It] ")
        if case.find("skipped") is not None:
            reason = case.find("skipped")
            skipped += reason is not None and bool(reason.get("message", "").partition(" - ")[2])
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        else:
            passed.append(name)
    return Result(tuple(sorted(passed)), tuple(sorted(failed)), skipped)


def document(reports: Path, page: Path, version: str) -> None:
    """Write the table of all disks and parts into a page, between its two marks. Raises ValueError without them."""
    disks = sorted(path.name for path in reports.iterdir() if path.is_dir())
    parts = [path.stem for path in sorted((reports / disks[0]).glob("*.xml"), key=lambda path: path.stat().st_mtime)]
    lines = [f"Kubernetes {version}, passed / failed / skipped as not offered:", ""]
    lines += [f"| disk | {' | '.join(parts)} |", "|---" * (len(parts) + 1) + "|"]
    for disk in disks:
        found = [read(reports / disk / f"{part}.xml") for part in parts]
        lines.append(
            f"| {disk} | " + " | ".join(f"{len(r.passed)} / {len(r.failed)} / {r.skipped}" for r in found) + " |"
        )
    text, count = re.subn(
        f"(?s){re.escape(BEGIN)}.*{re.escape(END)}",
        "\n".join([BEGIN, *lines, END]).replace("\\", r"\\"),
        page.read_text(),
    )
    if not count:
        raise ValueError(f"{page} has no line {BEGIN}")
    page.write_text(text)
