"""Blobs and their decompression."""

from __future__ import annotations

import gzip
import importlib
import io
import resource
import zlib
from typing import Any

import pytest

from tonnage.base.errors import InvalidError, UnsupportedError
from tonnage.storage.images.stream import Blob, Unpacked, read_blob
from tonnage_box.testing.image_archive import digest

DATA = bytes(range(256)) * 4096


def unpack(data: bytes, compression: str = "gzip", most: int = 1 << 30) -> bytes:
    content = Unpacked(Blob(io.BytesIO(data), "layer"), compression, "layer", most=most)
    return b"".join(iter(lambda: content.read(1 << 16), b""))


class Zeros:
    """A gzip stream of zeros that never ends."""

    def __init__(self) -> None:
        self._press = zlib.compressobj(9, zlib.DEFLATED, 31)
        self._zeros = bytes(16 << 20)

    def read(self, size: int, /) -> bytes:
        data = b""
        while not data:
            data = self._press.compress(self._zeros)
        return data


def test_a_blob_has_its_size_and_digest() -> None:
    blob = Blob(io.BytesIO(DATA), "layer", size=len(DATA), digest=digest(DATA))
    assert blob.read(10) == DATA[:10]
    assert blob.finish() == digest(DATA)


@pytest.mark.parametrize(
    ("size", "found", "why"),
    [(len(DATA) - 1, DATA, "longer than its size"), (len(DATA) + 1, DATA, "truncated"), (3, b"abc", "has digest")],
)
def test_a_blob_that_differs_is_rejected(size: int, found: bytes, why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        Blob(io.BytesIO(found), "layer", size=size, digest=digest(DATA)).finish()


def test_a_document_has_a_limit() -> None:
    assert read_blob(io.BytesIO(b"abc"), "x", most=3) == b"abc"
    with pytest.raises(InvalidError, match="longer than"):
        read_blob(io.BytesIO(b"abcd"), "x", most=3)


@pytest.mark.parametrize("data", [gzip.compress(DATA), gzip.compress(DATA[:9]) + gzip.compress(DATA[9:])])
def test_gzip_of_one_and_more_members(data: bytes) -> None:
    assert unpack(data) == DATA


def test_no_compression() -> None:
    assert unpack(DATA, "") == DATA


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (gzip.compress(DATA)[:-9], "truncated"),
        (gzip.compress(DATA)[:5], "truncated"),
        (gzip.compress(DATA) + b"garbage", "gzip: "),
        (b"not gzip at all", "gzip: "),
        (gzip.compress(DATA)[:-8] + bytes(8), "gzip: "),
    ],
)
def test_damaged_gzip_is_rejected(data: bytes, why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        unpack(data)


def test_a_bomb_is_rejected_by_its_ratio_in_little_memory() -> None:
    content = Unpacked(Blob(Zeros(), "layer"), "gzip", "layer", most=1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidError, match="times its compressed size"):
        sum(map(len, iter(lambda: content.read(1 << 16), b"")))
    assert content.count < 1 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_a_layer_that_is_too_large_is_rejected() -> None:
    with pytest.raises(InvalidError, match="larger than 1000 bytes"):
        unpack(gzip.compress(DATA), most=1000)


def zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def test_zstd_is_read_or_rejected_by_name() -> None:
    if (module := zstd()) is None:
        with pytest.raises(UnsupportedError, match=r"install backports\.zstd, or save the image with gzip"):
            unpack(b"\x28\xb5\x2f\xfd", "zstd")
        return
    frame = module.compress(DATA)
    assert unpack(frame + frame, "zstd") == DATA * 2
    with pytest.raises(InvalidError, match="zstd: "):
        unpack(frame[:-5], "zstd")
