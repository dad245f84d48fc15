"""Bounded streams: a blob checked against digest and size, and its decompression against bombs. Blocking."""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tonnage.base.errors import InvalidError, UnsupportedError

CHUNK = 64 << 10  # bytes read at once
_OUT = 1 << 20  # bytes that a decompressor returns at once
_RATIO, _FREE = 100, 64 << 20


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most size bytes, b"" at the end."""


class Blob:
    """A blob while it is read. size, digest: what it must have; None and "" where that is not known."""

    def __init__(self, source: Readable, what: str, *, size: int | None = None, digest: str = "") -> None:
        self._source, self._what, self._size, self._digest = source, what, size, digest
        self._hash = hashlib.sha256()
        self.count = 0

    def read(self, size: int, /) -> bytes:
        """Read at most size bytes. Raises: InvalidError when it is longer than it may be."""
        data = self._source.read(size)
        self.count += len(data)
        if self._size is not None and self.count > self._size:
            raise InvalidError(f"{self._what}: longer than its size of {self._size} bytes")
        self._hash.update(data)
        return data

    def finish(self) -> str:
        """Read the rest, check size and digest, and return the digest. Raises: InvalidError."""
        while self.read(CHUNK):
            pass
        if self._size is not None and self.count != self._size:
            raise InvalidError(f"{self._what}: has {self.count} bytes, its size is {self._size}: it is truncated")
        found = self.digest()
        if self._digest and found != self._digest:
            raise InvalidError(f"{self._what}: content has digest {found}, want {self._digest}: it is damaged")
        return found

    def digest(self) -> str:
        """The digest of all that was read."""
        return f"sha256:{self._hash.hexdigest()}"


def read_blob(source: Readable, what: str, *, most: int, size: int | None = None, digest: str = "") -> bytes:
    """A small blob whole. most: bytes. Raises: InvalidError."""
    blob = Blob(source, what, size=most if size is None else size, digest=digest if size is not None else "")
    parts = []
    while part := blob.read(CHUNK):
        parts.append(part)
    if size is not None:
        blob.finish()
    return b"".join(parts)


class Unpacked:
    """The uncompressed content of a layer: read in pieces, hashed, and limited.

    most: bytes at most. A layer that grows to more than 100 times its compressed size and 64 MiB is a bomb; ratio:
    another number of times, 0 where `most` is limit enough.
    """

    def __init__(self, blob: Blob, compression: str, what: str, *, most: int, ratio: int = _RATIO) -> None:
        self._ratio = ratio
        self._what, self._most, self._blob, self._compression = what, most, blob, compression
        self._pieces = _PIECES[compression](blob, what)
        self._rest = b""
        self._hash = hashlib.sha256() if compression else None  # else the blob's is the same
        self.count = 0

    def read(self, size: int, /) -> bytes:
        """Read at most size bytes. Raises: InvalidError."""
        if not self._rest:
            self._rest = next(filter(None, self._pieces), b"")  # a decompressor may need more for its first byte
            self.count += len(self._rest)
            if self._hash is not None:
                self._hash.update(self._rest)
            if self.count > self._most:
                raise InvalidError(f"{self._what}: unpacked it is larger than {self._most} bytes")
            if self._compression and self._ratio and self.count > self._ratio * self._blob.count + _FREE:
                raise InvalidError(
                    f"{self._what}: more than {self._ratio} times its compressed size: it is not unpacked"
                )
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def digest(self) -> str:
        """The digest of all that was read."""
        return f"sha256:{self._hash.hexdigest()}" if self._hash is not None else self._blob.digest()


def _plain(blob: Blob, what: str) -> Iterator[bytes]:
    while data := blob.read(CHUNK):
        yield data


def _gzip(blob: Blob, what: str) -> Iterator[bytes]:
    """All members of a gzip stream."""
    data = blob.read(CHUNK)
    while data:
        member = zlib.decompressobj(31)
        try:
            while not member.eof:
                yield member.decompress(data, _OUT)
                data = member.unconsumed_tail or (b"" if member.eof else blob.read(CHUNK))
                if not data and not member.eof:
                    raise InvalidError(f"{what}: gzip: the stream is truncated")
        except zlib.error as failure:
            raise InvalidError(f"{what}: gzip: {failure}") from failure
        data = member.unused_data or blob.read(CHUNK)


def _zstd(blob: Blob, what: str) -> Iterator[bytes]:
    module = _zstd_module(what)
    data = blob.read(CHUNK)
    while data:
        frame = module.ZstdDecompressor()
        try:
            while not frame.eof:
                yield frame.decompress(data, _OUT)
                data = b""
                if frame.needs_input and not frame.eof and not (data := blob.read(CHUNK)):
                    raise InvalidError(f"{what}: zstd: the stream is truncated")
        except module.ZstdError as failure:
            raise InvalidError(f"{what}: zstd: {failure}") from failure
        data = frame.unused_data or blob.read(CHUNK)


def _zstd_module(what: str) -> Any:
    """The module of Python 3.14, or its port to earlier ones. Raises: UnsupportedError."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UnsupportedError(
        f"{what}: the layer is compressed with zstd, which this Python cannot read: use Python 3.14, install "
        "backports.zstd, or save the image with gzip"
    )


_PIECES: dict[str, Callable[[Blob, str], Iterator[bytes]]] = {"": _plain, "gzip": _gzip, "zstd": _zstd}
