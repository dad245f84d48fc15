"""Masks of signals as /proc/PID/status shows them."""

from __future__ import annotations

import re

_OF_THREADS = 0x180000000  # signals 32 and 33, which make and other users of posix_spawn(3) ignore for what they start


def without_threads(text: str) -> str:
    """The text, its masks without the signals that are the C library's own."""
    return re.sub(r"\b[0-9a-f]{16}\b", lambda mask: f"{int(mask[0], 16) & ~_OF_THREADS:016x}", text)
