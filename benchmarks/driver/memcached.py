"""Throughput of memcached with extstore: on an image volume, and in the folder of that volume's file.

Both servers run alternately with the same load: values for several times their memory are stored, then read at random.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.box.box import ROOT
from benchmarks.driver.memcached_client import MemcachedClient
from benchmarks.figure import Figure

from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.config import make, parse

PROGRAM = "memcached"
COUNT, VALUE = 40_000, b"v" * 2048
ROUNDS = 3
_EXT = "ext_page_size=2,ext_wbuf_size=2,ext_item_size=512,ext_threads=1,ext_path={}/ext:512M"
_SIZE = 640 << 20


async def run() -> list[Figure]:
    """The throughput; none where memcached or root is missing."""
    if not ROOT or shutil.which(PROGRAM) is None:
        print(f"memcached: needs root and the program {PROGRAM} (Debian: apt-get install memcached)", file=sys.stderr)
        return []
    folder = Path(tempfile.mkdtemp(prefix="tonnage-memcached-", dir="/var/tmp"))
    try:
        return await _measured(folder)
    finally:
        shutil.rmtree(folder)


async def _measured(folder: Path) -> list[Figure]:
    bare, staging = folder / "bare", folder / "volume"
    bare.mkdir()
    pool = make(parse(f"image:{folder}/pool,name=p,size=1Gi"))
    await pool.open()
    await pool.create(VolumeRequest("cache", _SIZE, fstype="ext4"))
    await pool.stage("cache", staging)
    try:
        rates: dict[Path, list[float]] = {bare: [], staging: []}
        for _ in range(ROUNDS):
            for place, found in rates.items():
                found.append(await asyncio.to_thread(_rate, place))
    finally:
        await pool.unstage("cache", staging)
        await pool.delete("cache")
        await pool.close()
    ours, disk = statistics.median(rates[staging]), statistics.median(rates[bare])
    name = "extstore: sets and gets a second on an image volume"
    return [Figure(name, ours, "/s", disk, "bare disk", at_least=0.9)]


def _rate(place: Path) -> float:
    """Operations a second of a server with its values there. Blocking."""
    keys = [f"key-{number}" for number in range(COUNT)]
    with server("-m", "32", "-o", _EXT.format(place)) as port, MemcachedClient(port) as client:
        began = time.monotonic()
        client.set(keys, VALUE)
        random.Random(1).shuffle(keys)
        client.hits(keys, VALUE)
        seconds = time.monotonic() - began
    (place / "ext").unlink()
    return 2 * COUNT / seconds


@contextmanager
def server(*arguments: str) -> Iterator[int]:
    """A memcached of this machine, ended at the end; its port. Blocking."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [PROGRAM, "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "root", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                MemcachedClient(port).__exit__()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait()
