"""What the kernel has cached of a file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tonnage.host.descriptor import opened

TRIES = 20
"""The kernel may hold a page at the moment that it is to be dropped, or need its memory at any moment."""


def is_cached(file: Path) -> bool:
    """Whether the first page is. Skips the test where the file system does not tell."""
    with opened(file) as fd:
        try:
            return os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False
        except OSError as failure:
            if failure.errno != errno.EOPNOTSUPP:
                raise
            pytest.skip("this file system does not tell what is cached")
