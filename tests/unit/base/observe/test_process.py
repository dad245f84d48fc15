"""Tuning of a process, seen in a process of its own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, gc, resource, threading
from tonnage.base.observe import process

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(64, hard), hard))
process.tune_allocator()
process.raise_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)

async def main():
    process.settle()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == (10_000, 2, 50)
    name = await asyncio.to_thread(lambda: threading.current_thread().name)
    assert name.startswith("blocking"), name
    later = [[] for _ in range(1000)]
    before = gc.get_freeze_count()
    trimming = asyncio.ensure_future(process.keep_trimmed(every=0))
    while gc.get_freeze_count() < before + 1000:
        await asyncio.sleep(0)
    trimming.cancel()

asyncio.run(main())
print("tuned")
"""


def test_limits_collector_and_threads() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout, ended.returncode) == ("tuned\n", 0), ended.stderr
