"""Command blocks of a documentation page: what it tells people to type, and the output that it shows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

READS = re.compile(r"kubectl (-n \S+ )?(get|logs|describe|events|exec)\b|(sudo )?tonnage volumes trash\b")
CHANGES = re.compile(r"\S*[0-9]\S*|/\S*|\S*=/\S*|\S+-[a-z0-9]{5}")
"""Words that differ from run to run: numbers, ages, uids, addresses, absolute paths, generated names."""

LEFT_OUT = "..."
FAILS = "command terminated with exit code 1"
"""What kubectl prints of a command in a pod that fails."""
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VARIES = re.compile(
    r"/dev/loop\d+|(?<=\bcsi-)[0-9a-f]{64}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|(?<!\S)(?:\d+[smhd])+(?!\S)"
    r"|(?<=-)[bcdfghjklmnpqrstvwxz2-9]{5}(?![a-z0-9])"
)
"""Devices, names of attachments, times, ages, and the ends of names of a Job's pods."""


@dataclass(frozen=True)
class Command:
    """A command of a page and what the page shows as its output."""

    text: str
    shown: str

    def is_shown_by(self, output: str) -> bool:
        """Whether each line that the page shows is there, but for words that change; lines may come in any order.

        A line `...` stands for lines that the page leaves out.
        """
        found = [set(line.split()) for line in output.splitlines()]
        lines = [line for line in self.shown.splitlines() if line != LEFT_OUT]
        wanted = [{w for w in line.split() if not CHANGES.fullmatch(w)} for line in lines]
        return all(any(words <= line for line in found) for words in wanted)

    def is_printed_as(self, output: str) -> bool:
        """Whether the output is what the page shows, line by line, but for what `_VARIES` and UIDs.

        A line `...` stands for any lines. Without lines on the page, any output is good.
        """
        lines = [_constant(line) for line in self.shown.splitlines()]
        pattern = "".join(r"(?:.*\n)*" if line == LEFT_OUT else f"{re.escape(line)}\\n" for line in lines)
        printed = "".join(f"{_constant(line)}\n" for line in output.splitlines())
        return not lines or re.fullmatch(pattern, printed) is not None

    @property
    def typed(self) -> list[str]:
        """The lines that the page shows behind the prompt of a shell in a pod."""
        lines = self.shown.splitlines() if re.search(r" exec -it ", self.text) else []
        return [line.removeprefix("# ") for line in lines if line.startswith("# ")]


def _constant(line: str) -> str:
    return " ".join(UUID.sub("UID", _VARIES.sub("VARIES", line)).split())


@dataclass(frozen=True)
class Block:
    """A block of a page. place: its first line if that is a comment, which says where it can be run."""

    heading: str
    language: str
    text: str

    @property
    def place(self) -> str:
        """Which cluster or machine its commands are for; "" for the box."""
        first = self.text.partition("\n")[0]
        return first.removeprefix("# ") if self.language == "console" and first.startswith("# ") else ""

    def commands(self) -> Iterator[Command]:
        """Lines that start with `$ `, each with what follows up to the next one."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            marker = re.search(r"<<-?\s*'?(\w+)", lines[0])
            end = lines.index(marker[1]) + 1 if marker else 1
            yield Command("\n".join(lines[:end]), "\n".join(lines[end:]))


def blocks(page: Path) -> Iterator[Block]:
    """All blocks, in order, with those in lists."""
    heading = ""
    pattern = r"^#+ (?P<heading>[^\n]+)$|^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^(?P=indent)```$"
    for found in re.finditer(pattern, page.read_text(), re.MULTILINE | re.DOTALL):
        heading = found["heading"] or heading
        if found["heading"] is None:
            yield Block(heading, found["language"], textwrap.dedent(found["text"]))


def commands(page: Path, but: str = "") -> Iterator[Command]:
    """The commands of console blocks.

    but: a program; blocks with it are left out.
    """
    for block in blocks(page):
        if block.language == "console" and not (but and f"$ {but} " in block.text):
            yield from block.commands()


def walks(page: Path) -> dict[str, list[str]]:
    """The walks of docs/architecture.md: heading after "Walk: " -> paths of files below the repository, in order."""
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    return {
        section.splitlines()[0].removeprefix("Walk: "): re.findall(r"^\d+\. `([^`]+)`:", section, re.MULTILINE)
        for section in sections
        if section.startswith("Walk: ")
    }
