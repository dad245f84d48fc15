"""CRI lines and rotated log files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tonnage_box.kubelet.containers.log_writer import LONGEST, LogFile, LogLines, UnfinishedLine, stamp


@given(st.lists(st.binary(max_size=3 * LONGEST), max_size=6))
def test_log_lines_lose_nothing(chunks: list[bytes]) -> None:
    lines = LogLines(b"stdout")
    out = b"".join([*(lines.feed(chunk, b"T") for chunk in chunks), lines.end(b"T")])
    back = b""
    for line in out.split(b"\n")[:-1]:
        head, text = line[: len(b"T stdout F")], line[len(b"T stdout F ") :]
        assert head in (b"T stdout F", b"T stdout P")
        assert len(text) <= LONGEST
        back += text + (b"\n" if head.endswith(b"F") else b"")
    assert back == b"".join(chunks)


@given(st.lists(st.binary(max_size=2 * LONGEST), max_size=6))
def test_a_line_that_is_not_finished_outlives_its_process(chunks: list[bytes]) -> None:
    """Each chunk is read by another process, of which the one before was killed."""
    out = b""
    with tempfile.TemporaryDirectory() as folder:
        for chunk in chunks:
            file = UnfinishedLine(f"{folder}/line")
            lines = LogLines(b"stdout", file.load())
            out += lines.feed(chunk, b"T")
            file.save(lines.rest)
            file.close()
        rest = UnfinishedLine(f"{folder}/line").load()
    whole = LogLines(b"stdout")
    assert out == b"".join(whole.feed(chunk, b"T") for chunk in chunks)
    assert rest == whole.rest


def test_whole_lines_touch_no_file(tmp_path: Path) -> None:
    file = UnfinishedLine(str(tmp_path / "line"))
    file.save(b"")
    assert list(tmp_path.iterdir()) == []
    file.save(b"part")
    file.save(b"")
    assert (tmp_path / "line").read_bytes() == b""
    file.close()


def test_stamps_have_nine_digits() -> None:
    assert stamp(1_700_000_000_000_000_001) == b"2023-11-14T22:13:20.000000001Z"


def test_log_files_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "c" / "0.log"
    file = LogFile(str(path), rotate=100)
    for number in range(50):
        file.write(b"%03d %s\n" % (number, b"x" * 16))
    file.close()
    assert path.stat().st_size <= 121
    assert (tmp_path / "c" / "0.log.1").stat().st_size <= 121
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["0.log", "0.log.1"]
    assert path.read_bytes().endswith(b"049 " + b"x" * 16 + b"\n")
