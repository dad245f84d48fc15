"""Which writes of a program belong to a snapshot, and how long the longest of them took."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.data_services import writer
from benchmarks.data_services.freeze import between, longest_in

WRITES = [(0.0, 0.1), (0.1, 0.2), (0.2, 0.9), (0.9, 1.0), (1.0, 1.1), (2.0, 2.1)]


def test_the_longest_write_of_a_snapshot_may_begin_before_it_and_end_after_it() -> None:
    assert longest_in(WRITES, [(0.5, 0.6), (0.95, 1.05), (1.4, 1.5)]) == pytest.approx([700, 100, 0])


def test_other_writes_overlap_no_snapshot() -> None:
    assert between(WRITES, [(0.5, 0.6), (0.95, 1.05)]) == [(0.0, 0.1), (0.1, 0.2), (2.0, 2.1)]
    assert between(WRITES, []) == WRITES


def test_the_writer_reports_each_of_its_writes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", writer.__name__, str(tmp_path / "log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"\n"
    while not (tmp_path / "log").read_bytes().strip(b"\0"):
        pass
    out, _ = process.communicate(timeout=60)
    spans = list(struct.iter_unpack(writer.SPAN, out))
    assert process.returncode == 0
    assert spans
    assert all(begin <= end for begin, end in spans)
    assert spans == sorted(spans)
