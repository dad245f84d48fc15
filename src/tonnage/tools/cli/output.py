"""Terminal output: steps, checks and tables. Rich on a terminal, plain text otherwise, with the same words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

OK, BAD = "ok", "FAILED"


class Output:
    """Writes to one stream. fancy: None for "if the stream is a terminal"."""

    def __init__(self, stream: TextIO | None = None, *, fancy: bool | None = None) -> None:
        self.stream = stream or sys.stdout
        self._console: Console | None = None
        if self.stream.isatty() if fancy is None else fancy:
            from rich.console import Console  # only where it is looked at: it costs memory and time

            self._console = Console(file=self.stream, highlight=False, soft_wrap=True)

    def line(self, text: str = "") -> None:
        """One plain line."""
        if self._console is not None:
            self._console.print(text, markup=False)
        else:
            print(text, file=self.stream, flush=True)

    def title(self, text: str) -> None:
        """A heading."""
        if self._console is not None:
            self._console.print(f"\n[bold cyan]{_escape(text)}[/]")
        else:
            self.line(f"\n{text}")

    def step(self, text: str, detail: str = "") -> None:
        """Something is ready."""
        self._mark("✓" if self._console else "-", "green", text, detail)

    def waits(self, what: str) -> None:
        """Report what a slow step waits for."""
        self._mark("…" if self._console else "...", "yellow", "waiting for", what)

    def check(self, text: str, *, held: bool, detail: str = "") -> None:
        """A claim of the story, and whether it held."""
        if self._console is not None:
            self._mark("✓" if held else "✗", "green" if held else "bold red", text, detail)
        else:
            self.line(f"  [{OK if held else BAD}] {text}" + (f": {detail}" if detail else ""))

    def _mark(self, mark: str, style: str, text: str, detail: str) -> None:
        if self._console is not None:
            tail = f"[dim]: {_escape(detail)}[/]" if detail else ""
            self._console.print(f"  [{style}]{mark}[/] {_escape(text)}{tail}")
        else:
            self.line(f"  {mark} {text}" + (f": {detail}" if detail else ""))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table; columns are as wide as their widest cell."""
        if self._console is not None:
            from rich.box import SIMPLE_HEAD
            from rich.table import Table

            table = Table(*columns, box=SIMPLE_HEAD, pad_edge=True)
            for row in rows:
                table.add_row(*(_escape(cell) for cell in row))
            self._console.print(table)
            return
        widths = [max(len(str(r[i])) for r in (columns, *rows)) for i in range(len(columns))]
        for row in (columns, *rows):
            self.line("    " + "  ".join(str(c).ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show that something is being waited for."""
        if self._console is None:
            yield
            return
        with self._console.status(text):
            yield


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
