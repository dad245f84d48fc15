"""Command blocks of a documentation page: what it tells people to type, and the output that it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

READS = re.compile(r"kubectl (-n \S+ )?(get|logs|describe|events|exec)\b")
CHANGES = re.compile(r"\S*[0-9]\S*|/\S*|\S*=/\S*|\S+-[a-z0-9]{5}")
"""Words that differ from run to run: numbers, ages, uids, addresses, absolute paths, generated names."""

LEFT_OUT = "..."


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

    @property
    def typed(self) -> list[str]:
        """The lines that the page shows behind the prompt of a shell in a pod."""
        lines = self.shown.splitlines() if re.search(r" exec -it ", self.text) else []
        return [line.removeprefix("# ") for line in lines if line.startswith("# ")]


def commands(page: Path, but: str = "") -> Iterator[Command]:
    """Lines that start with `$ ` in console blocks, each with what follows up to the next one.

    but: a program; blocks with it are left out.
    """
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        if but and f"$ {but} " in block:
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            marker = re.search(r"<<-?\s*'?(\w+)", lines[0])
            end = lines.index(marker[1]) + 1 if marker else 1
            yield Command("\n".join(lines[:end]), "\n".join(lines[end:]))


def walks(page: Path) -> dict[str, list[str]]:
    """The walks of docs/architecture.md: heading after "Walk: " -> paths of files below the repository, in order."""
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    return {
        section.splitlines()[0].removeprefix("Walk: "): re.findall(r"^\d+\. `([^`]+)`:", section, re.MULTILINE)
        for section in sections
        if section.startswith("Walk: ")
    }
