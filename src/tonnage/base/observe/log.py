"""Logs: a constant message with key=value, as text for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Render the record."""
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


DELETIONS = (
    "tonnage.node.deletions",
    "tonnage.csi.driver.inline",
    "tonnage.storage.pools.core.trash",
    "tonnage.storage.pools.core.volumes",
)
"""Loggers that name what was deleted, and why. A person asks for that a year later, so they are shown by default."""


def setup(level: str = "info", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Write the root logger's lines to stream (standard error). The last call counts."""
    handler = logging.StreamHandler(stream or sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonFormatter() if as_json else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    for noisy in ("asyncio", "grpclib", "hpack", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Show lines from that level on; those that name deletions unless only errors are."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in DELETIONS:
        logging.getLogger(name).setLevel(logging.INFO if root.level == logging.WARNING else logging.NOTSET)
