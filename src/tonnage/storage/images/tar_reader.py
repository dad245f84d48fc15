"""Tar archives as a stream of entries: ustar, GNU and PAX headers, with limits. Blocking; writes nothing.

Python's tarfile reads a header of any size into memory, and its fixes differ between releases. Names stay bytes: Linux
does not want them to be UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tonnage.base.errors import InvalidError, UnsupportedError
from tonnage.storage.images.stream import CHUNK, Readable

_BLOCK = 512
_MAX_HEADER = 1 << 20  # bytes of one PAX header or long name
_MAX_SEGMENTS = 100_000
_MAX_NUMBER = 1 << 62
_XATTR = b"SCHILY.xattr."
_SPARSE = b"GNU.sparse."
KINDS = {
    b"0": "file", b"\0": "file", b"7": "file", b"S": "file", b"1": "link", b"2": "symlink", b"3": "char", b"4": "block",
    b"5": "dir", b"6": "fifo",
}  # fmt: skip

Records = list[tuple[bytes, bytes]]


@dataclass
class TarEntry:
    """One entry. size: bytes of a file as it appears; stored: bytes in the archive; segments: of a sparse file."""

    name: bytes
    kind: str
    link: bytes = b""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: float = 0.0
    size: int = 0
    stored: int = 0
    device: tuple[int, int] = (0, 0)
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    segments: list[tuple[int, int]] | None = None


class TarReader:
    """Reads the entries of a stream in order; data() is of the last one.

    seek: of a file, whose contents are then skipped without being read.
    """

    def __init__(self, source: Readable, what: str, *, seek: Callable[[int], int] | None = None) -> None:
        self._source, self._what, self._seek = source, what, seek
        self._left = 0  # stored bytes of the current entry
        self._padding = 0
        self._global: dict[bytes, bytes] = {}
        self.position = 0
        """Bytes read so far."""

    def __iter__(self) -> Iterator[TarEntry]:
        """All entries. Raises: InvalidError, UnsupportedError."""
        while (entry := self._next()) is not None:
            yield entry

    def data(self) -> Iterator[bytes]:
        """The stored bytes of the current entry, in pieces."""
        while self._left:
            part = self._read(min(self._left, CHUNK), exact=False)
            self._left -= len(part)
            yield part

    def skip(self) -> None:
        """Read past the current entry."""
        if self._seek is not None:
            self.position = self._seek(self.position + self._left + self._padding)
            self._left = self._padding = 0
            return
        for _ in self.data():
            pass
        self._read(self._padding)
        self._padding = 0

    def _next(self) -> TarEntry | None:
        records: Records = []
        name, link = b"", b""
        while (header := self._header()) is not None:
            kind, size = header[156:157], _number(header[124:136], "size", self._what)
            if kind in (b"x", b"g", b"X"):
                found = _records(self._body(size), self._what)
                if kind == b"g":
                    self._global.update(found)
                    if sum(len(k) + len(v) for k, v in self._global.items()) > _MAX_HEADER:
                        raise self._invalid(f"global headers have more than {_MAX_HEADER} bytes")
                else:
                    records = found
            elif kind == b"L":
                name = self._body(size).rstrip(b"\0")
            elif kind == b"K":
                link = self._body(size).rstrip(b"\0")
            elif kind == b"V":
                self._body(size)
            else:
                return self._entry(header, kind, records, name, link)
        if records or name or link:
            raise self._invalid("it ends after an extended header")
        return None

    def _header(self) -> bytes | None:
        """The next header, None at the end of the archive, which has only zeros behind it."""
        self.skip()
        block = self._read(_BLOCK, exact=False)
        if not block:
            return None
        block += self._read(_BLOCK - len(block))
        if block.count(0) == _BLOCK:
            while rest := self._read(CHUNK, exact=False):
                if rest.count(0) != len(rest):
                    raise self._invalid("there is data after its end")
            return None
        if not _is_checksum(_number(block[148:156], "checksum", self._what), block):
            raise self._invalid(f"the header at {self.position - _BLOCK} has a wrong checksum")
        return block

    def _body(self, size: int) -> bytes:
        if size > _MAX_HEADER:
            raise self._invalid(f"an extended header has {size} bytes, at most {_MAX_HEADER} are read")
        body = self._read(size)
        self._read(-size % _BLOCK)
        return body

    def _entry(self, header: bytes, kind: bytes, records: Records, name: bytes, link: bytes) -> TarEntry:
        pax = {**self._global, **dict(records)}
        if kind not in KINDS:
            raise UnsupportedError(f"{self._what}: tar: an entry of type {kind!r} is not unpacked")
        size = _decimal(pax[b"size"], self._what) if b"size" in pax else _number(header[124:136], "size", self._what)
        entry = TarEntry(
            pax.get(b"path") or name or _name(header),
            KINDS[kind],
            pax.get(b"linkpath") or link or header[157:257].split(b"\0")[0],
            _number(header[100:108], "mode", self._what) & 0o7777,
            _decimal(pax[b"uid"], self._what) if b"uid" in pax else _number(header[108:116], "uid", self._what),
            _decimal(pax[b"gid"], self._what) if b"gid" in pax else _number(header[116:124], "gid", self._what),
            _time(pax[b"mtime"], self._what) if b"mtime" in pax else float(_signed(header[136:148], self._what)),
            size,
            size,
            xattrs={k[len(_XATTR) :]: v for k, v in pax.items() if k.startswith(_XATTR)},
        )
        if entry.kind in ("char", "block"):
            numbers = [_number(header[at : at + 8], "device", self._what) for at in (329, 337)]
            entry.device = numbers[0], numbers[1]
        if entry.kind == "file" and kind != b"S" and entry.name.endswith(b"/"):
            entry.kind = "dir"  # as tar did before POSIX
        if entry.kind != "file":
            entry.stored = entry.size = 0  # a header alone, whatever its size field says
        self._left, self._padding = entry.stored, -entry.stored % _BLOCK
        if entry.kind == "file" and kind == b"S":
            self._old_sparse(entry, header)
        elif entry.kind == "file" and any(key.startswith(_SPARSE) for key in pax):
            self._pax_sparse(entry, pax, records)
        return entry

    def _old_sparse(self, entry: TarEntry, header: bytes) -> None:
        """GNU's own format: segments in the header, and in blocks behind it."""
        numbers = [_number(header[at : at + 12], "sparse", self._what) for at in range(386, 482, 12)]
        more, entry.size = header[482], _number(header[483:495], "size", self._what)
        while more:
            block = self._read(_BLOCK)
            numbers += [_number(block[at : at + 12], "sparse", self._what) for at in range(0, 504, 12)]
            more = block[504]
            if len(numbers) > 2 * _MAX_SEGMENTS:
                raise self._invalid("a sparse file has too many segments")
        self._check_segments(entry, numbers)

    def _pax_sparse(self, entry: TarEntry, pax: dict[bytes, bytes], records: Records) -> None:
        """Formats 0.0 (repeated records), 0.1 (one record) and 1.0 (before the data)."""
        entry.name = pax.get(_SPARSE + b"name", entry.name)
        real = pax.get(_SPARSE + b"realsize") or pax.get(_SPARSE + b"size")
        if real is None:
            raise self._invalid("a sparse file has no size")
        entry.size = _decimal(real, self._what)
        if pax.get(_SPARSE + b"major") == b"1":
            numbers = self._map(entry)
        elif (text := pax.get(_SPARSE + b"map")) is not None:
            numbers = [_decimal(part, self._what) for part in text.split(b",") if part]
        else:
            wanted = (_SPARSE + b"offset", _SPARSE + b"numbytes")
            numbers = [_decimal(value, self._what) for key, value in records if key in wanted]
        self._check_segments(entry, numbers)

    def _map(self, entry: TarEntry) -> list[int]:
        """Decimal lines before the data: their count, then offsets and lengths, filled up to a block."""
        numbers: list[int] = []
        rest, wanted = b"", 1
        while len(numbers) < wanted:
            if self._left < _BLOCK:
                raise self._invalid("a sparse file's map is longer than the file")
            self._left -= _BLOCK
            entry.stored -= _BLOCK
            *lines, rest = (rest + self._read(_BLOCK)).split(b"\n")
            numbers += [_decimal(line, self._what) for line in lines[: wanted - len(numbers) if numbers else None]]
            if numbers:
                wanted = 1 + 2 * numbers[0]
            if wanted > 2 * _MAX_SEGMENTS or len(rest) > _BLOCK:
                raise self._invalid("a sparse file has too many segments")
            numbers = numbers[:wanted]
        return numbers[1:]

    def _check_segments(self, entry: TarEntry, numbers: list[int]) -> None:
        if len(numbers) % 2:
            raise self._invalid("a sparse file's map has an odd number of numbers")
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        entry.segments = [(offset, length) for offset, length in pairs if length]
        end = 0
        for offset, length in entry.segments:
            if offset < end or offset + length > entry.size:
                raise self._invalid("segments of a sparse file overlap or are behind its end")
            end = offset + length
        if sum(length for _, length in entry.segments) != entry.stored:
            raise self._invalid("a sparse file has other bytes than its map says")

    def _read(self, size: int, *, exact: bool = True) -> bytes:
        data = self._source.read(size) if size else b""
        while exact and len(data) < size:
            part = self._source.read(size - len(data))
            if not part:
                raise self._invalid("it is truncated")
            data += part
        if not exact and size and not data and self._left:
            raise self._invalid("it is truncated")
        self.position += len(data)
        return data

    def _invalid(self, why: str) -> InvalidError:
        return InvalidError(f"{self._what}: tar: {why}")


def may_be_tar(start: bytes) -> bool:
    """Whether a file that begins with these 512 bytes may be an archive."""
    if len(start) < _BLOCK or start.count(0) == _BLOCK:
        return len(start) >= _BLOCK
    try:
        return _is_checksum(_number(start[148:156], "checksum", ""), start[:_BLOCK])
    except InvalidError:
        return False


def _is_checksum(found: int, block: bytes) -> bool:
    """Whether it is the checksum of a header, or that of programs whose bytes have signs."""
    content = block[:148] + b" " * 8 + block[156:]
    total = sum(content)
    return found == total or found == total - 256 * sum(byte > 127 for byte in content)


def _name(header: bytes) -> bytes:
    name, prefix = header[:100].split(b"\0")[0], header[345:500].split(b"\0")[0]
    is_posix = header[257:263] == b"ustar\0"
    return prefix + b"/" + name if is_posix and prefix else name


def _records(body: bytes, what: str) -> Records:
    """PAX records: length, space, key, =, value, newline; the length counts itself."""
    found: Records = []
    at = 0
    while at < len(body):
        length, space, _ = body[at : at + 20].partition(b" ")
        if not space:
            raise InvalidError(f"{what}: tar: a PAX record has no length")
        end = at + _decimal(length, what)
        key, equals, value = body[at + len(length) + 1 : end - 1].partition(b"=")
        if end > len(body) or end <= at + len(length) + 1 or not equals or not key or body[end - 1 : end] != b"\n":
            raise InvalidError(f"{what}: tar: a PAX record is malformed")
        if key in (b"path", b"linkpath") and b"\0" in value:
            raise InvalidError(f"{what}: tar: a name has a NUL")
        found.append((key, value))
        at = end
    return found


def _decimal(text: bytes, what: str) -> int:
    if not text.isdigit() or len(text) > 19 or int(text) > _MAX_NUMBER:
        raise InvalidError(f"{what}: tar: {text[:24]!r} is not a number from 0 to {_MAX_NUMBER}")
    return int(text)


def _time(text: bytes, what: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not -(1 << 40) < found < 1 << 40:
        raise InvalidError(f"{what}: tar: mtime {text[:24]!r} is not a time")
    return found


def _signed(field_: bytes, what: str) -> int:
    """A time: like a number, and negative in base 256."""
    if field_[:1] == b"\xff":
        return max(int.from_bytes(field_, "big", signed=True), -(1 << 40))
    return min(_number(field_, "mtime", what), 1 << 40)


def _number(field_: bytes, name: str, what: str) -> int:
    """Octal digits, or GNU's base 256. Raises: InvalidError."""
    if field_[0] & 0x80:
        first = field_[0]
        found = int.from_bytes(bytes([first & 0x7F]) + field_[1:], "big")
        if first & 0x40 or found > _MAX_NUMBER:
            raise InvalidError(f"{what}: tar: {name} is negative or too large")
        return found
    text = field_.split(b"\0")[0].strip(b" ")
    if text.strip(b"01234567"):
        raise InvalidError(f"{what}: tar: {name} {text!r} is not octal")
    return int(text, 8) if text else 0
