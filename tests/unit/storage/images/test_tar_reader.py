"""Headers of tar archives."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError, UnsupportedError
from tonnage.storage.images.tar_reader import TarEntry, TarReader
from tonnage_box.testing.image_archive import LayerTar


def entries(data: bytes) -> list[TarEntry]:
    return list(TarReader(io.BytesIO(data), "layer"))


def raw(change: dict[int, bytes], *, fix: bool = True, data: bytes = b"", name: str = "a") -> bytes:
    """One GNU header with some bytes changed."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for at, part in change.items():
        header[at : at + len(part)] = part
    if fix:
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data + bytes(-len(data) % 512) + bytes(1024)


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    return raw({156: kind}, data=records)[:-1024] + raw({})


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_formats_are_read(form: int) -> None:
    layer = LayerTar(form).add("d/a", b"hello", uid=7, gid=8, mode=0o640, mtime=5).symlink("s", "t").folder("f")
    if form != tarfile.USTAR_FORMAT:
        layer.add("n/" * 60 + "x", b"").symlink("long", "t" * 300)
    found = entries(layer.data())
    assert [(e.name.rstrip(b"/"), e.kind) for e in found[:3]] == [(b"d/a", "file"), (b"s", "symlink"), (b"f", "dir")]
    assert (found[0].uid, found[0].gid, found[0].mode, found[0].mtime, found[0].size) == (7, 8, 0o640, 5.0, 5)
    if form != tarfile.USTAR_FORMAT:
        assert found[3].name == b"n/" * 60 + b"x"
        assert found[4].link == b"t" * 300


def test_large_numbers_of_gnu() -> None:
    (found,) = entries(LayerTar(tarfile.GNU_FORMAT).add("a", uid=1 << 30).data())
    assert found.uid == 1 << 30


def test_global_records_have_a_limit() -> None:
    def header(number: int) -> bytes:
        record = b" k%d=" % number + b"v" * 500_000 + b"\n"
        return raw({156: b"g"}, data=b"%d" % (len(record) + 6) + record)[:-1024]

    with pytest.raises(InvalidError, match="global headers have more than"):
        entries(b"".join(map(header, range(3))) + raw({}))


def test_data_is_of_the_entry() -> None:
    reader = TarReader(io.BytesIO(LayerTar().add("a", b"1" * 100_000).add("b", b"2").data()), "layer")
    assert [b"".join(reader.data()) for _ in reader] == [b"1" * 100_000, b"2"]


def test_global_records_count_for_all() -> None:
    info = tarfile.TarFile(fileobj=io.BytesIO(), mode="w", pax_headers={"uid": "12"})
    assert info.fileobj is not None
    head = info.fileobj.getvalue()  # type: ignore[attr-defined]
    assert [entry.uid for entry in entries(head + LayerTar().add("a").add("b").data())] == [12, 12]


REJECTED = {
    "checksum": (raw({0: b"b"}, fix=False), "wrong checksum"),
    "negative size": (raw({124: b"\xff" * 12}), "negative or too large"),
    "size not octal": (raw({124: b"9" * 11}), "is not octal"),
    "huge size": (raw({124: b"\x80" + b"\x7f" * 11}), "negative or too large"),
    "truncated header": (raw({})[:300], "it is truncated"),
    "truncated data": (LayerTar().add("a", b"x" * 5000).data()[:2000], "it is truncated"),
    "data after the end": (raw({}) + b"evil" + bytes(508), "data after its end"),
    "long name too long": (raw({156: b"L", 124: b"00010000000\0"}), "at most 1048576 are read"),
    "records too long": (raw({156: b"x", 124: b"77777777777\0"}), "at most 1048576 are read"),
    "record without length": (pax(b"path=a\n"), "PAX record"),
    "record that ends early": (pax(b"9 path=abcdef\n"), "malformed"),
    "record longer than the header": (pax(b"99 path=a\n"), "malformed"),
    "record of length 0": (pax(b"0 path=a\n"), "malformed"),
    "record of a huge length": (pax(b"9" * 19 + b" path=a\n"), "is not a number"),
    "record without value": (pax(b"9 path a\n"), "malformed"),
    "name with NUL": (pax(b"12 path=a\0b\n"), "has a NUL"),
    "negative uid": (pax(b"10 uid=-1\n"), "is not a number"),
    "size that is no number": (pax(b"12 size=1e9\n"), "is not a number"),
    "time that is no time": (pax(b"13 mtime=nan\n"), "is not a time"),
    "time without end": (pax(b"13 mtime=inf\n"), "is not a time"),
    "name of nothing": (raw({156: b"L"}, data=b"long\0")[:-1024] + bytes(1024), "after an extended header"),
    "sparse without size": (pax(b"22 GNU.sparse.major=1\n"), "has no size"),
    "sparse with an odd map": (
        pax(b"22 GNU.sparse.map=0,1,2\n".replace(b"22", b"24") + b"21 GNU.sparse.size=9\n"),
        "odd number",
    ),
    "sparse that overlaps": (
        pax(b"25 GNU.sparse.map=5,5,4,5\n".replace(b"25", b"26") + b"22 GNU.sparse.size=99\n"),
        "overlap",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_bad_headers_are_rejected_by_name(case: str) -> None:
    data, why = REJECTED[case]
    with pytest.raises(InvalidError) as failure:
        entries(data)
    assert why in str(failure.value)


@pytest.mark.parametrize("kind", [b"M", b"D", b"Z", b"N"])
def test_kinds_that_are_not_known_are_rejected(kind: bytes) -> None:
    with pytest.raises(UnsupportedError, match="is not unpacked"):
        entries(raw({156: kind}))


def test_gnu_sparse_headers() -> None:
    numbers = {386: b"00000002000\0", 398: b"00000000004\0", 483: b"00000010000\0"}
    reader = TarReader(io.BytesIO(raw({156: b"S", **numbers}, data=b"data")), "layer")
    for entry in reader:
        assert entry.segments == [(1024, 4)]
        assert (entry.size, entry.stored) == (4096, 4)
        assert b"".join(reader.data()) == b"data"


@given(st.binary(max_size=4096))
@settings(deadline=None)
def test_noise_ends(data: bytes) -> None:
    with pytest.raises((InvalidError, UnsupportedError)):
        entries(data + b"\1" + bytes(len(data) % 2))
