"""Pauses of the garbage collector, for work that makes many objects and no garbage.

The collector would look at every object again and again while they are made, and no thread runs while it does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Collect no garbage in this process until the block ends; afterwards as before. Blocks may be nested.

    Where the blocks of two threads overlap, collection is on again when the first one's ends.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
