"""What the suite's JUnit files say, and the table of it in docs/conformance.md."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

BEGIN, END = "<!-- upstream: written by make test-upstream -->", "<!-- upstream: end -->"
BOX_BEGIN, BOX_END = "<!-- upstream box: written by make test-upstream-box -->", "<!-- upstream box: end -->"


@dataclass(frozen=True)
class Result:
    """Names of tests that ran; how many were skipped, as nothing that tonnage offers. fault: why the part failed even
    where none of its tests did, "" for nothing."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: int
    fault: str = ""

    @property
    def failures(self) -> int:
        """How many tests failed; a fault counts as one."""
        return len(self.failed) + bool(self.fault)

    def line(self) -> str:
        """In words."""
        text = f"{len(self.passed)} passed, {len(self.failed)} failed, {self.skipped} skipped"
        return f"{text}: {self.fault}" if self.fault else text


def judge(junit: Path, code: int, *, must_pass: bool = False) -> Result:
    """Return the result of a part whose ginkgo ended with this code.

    A part whose tests were all skipped with a reason did not fail: its disk offers none of it. must_pass: it did.
    """
    try:
        found = read(junit)
    except (OSError, xml.ParseError) as failure:
        return Result((), (), 0, f"ginkgo ended with {code} and wrote no results ({failure}): see its log")
    fault = ""
    if code and not found.failed:
        fault = f"ginkgo ended with {code}, and no test failed: see its log"
    elif not found.passed and not found.failed and (must_pass or not found.skipped):
        fault = "no test passed" if found.skipped else "no test ran"
    return replace(found, fault=fault)


def read(junit: Path) -> Result:
    """Read one file. Tests that the focus leaves out are not counted. Raises OSError, ParseError."""
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


def document(reports: Path, page: Path, version: str, *, disks: Iterable[str], parts: Sequence[str]) -> None:
    """Write the table of these disks and parts into a page, between its two marks. Raises ValueError without them."""
    lines = [f"Kubernetes {version}, passed / failed / skipped as not offered:", ""]
    lines += [f"| disk | {' | '.join(parts)} |", "|---" * (len(parts) + 1) + "|"]
    for disk in disks:
        lines.append(f"| {disk} | {' | '.join(_cell(reports / disk / f'{part}.xml') for part in parts)} |")
    _write(page, BEGIN, END, lines)


def document_box(reports: Path, page: Path, version: str, parts: Sequence[str]) -> None:
    """The same for the run against a box, between the marks of that."""
    lines = [f"Kubernetes {version}, passed / failed / skipped as not offered:", ""]
    lines += [f"| {' | '.join(parts)} |", "|---" * len(parts) + "|"]
    lines.append(f"| {' | '.join(_cell(reports / f'{part}.xml') for part in parts)} |")
    _write(page, BOX_BEGIN, BOX_END, lines)


def _write(page: Path, begin: str, end: str, lines: Sequence[str]) -> None:
    text, count = re.subn(
        f"(?s){re.escape(begin)}.*{re.escape(end)}",
        "\n".join([begin, *lines, end]).replace("\\", r"\\"),
        page.read_text(),
    )
    if not count:
        raise ValueError(f"{page} has no line {begin}")
    page.write_text(text)


def _cell(junit: Path) -> str:
    try:
        found = read(junit)
    except (OSError, xml.ParseError):
        return "no results"
    return f"{len(found.passed)} / {len(found.failed)} / {found.skipped}"
