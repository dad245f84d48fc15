"""A client for memcached's text protocol, pipelined. Used by the benchmark and by tests."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from itertools import islice

_AT_ONCE = 100


class MemcachedClient:
    """One connection. Use it as a context manager. Raises OSError."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> MemcachedClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def set(self, keys: Iterable[str], value: bytes) -> int:
        """Store value under each key; how many were stored."""
        stored = 0
        for some in _batches(keys):
            self._socket.sendall(b"".join(b"set %s 0 0 %d\r\n%s\r\n" % (k.encode(), len(value), value) for k in some))
            stored += sum(self._file.readline() == b"STORED\r\n" for _ in some)
        return stored

    def hits(self, keys: Iterable[str], value: bytes) -> int:
        """Of how many keys that value is there."""
        found = 0
        for some in _batches(keys):
            self._socket.sendall(b"".join(b"get %s\r\n" % key.encode() for key in some))
            for _ in some:
                while (line := self._file.readline()).startswith(b"VALUE"):
                    found += self._file.read(int(line.split()[3]) + 2)[:-2] == value
                if line != b"END\r\n":
                    raise OSError(f"memcached answers {line!r}")
        return found

    def stats(self) -> dict[str, str]:
        """The server's numbers."""
        self._socket.sendall(b"stats\r\n")
        found = {}
        while (line := self._file.readline()) != b"END\r\n":
            _, key, value = line.decode().split(None, 2)
            found[key] = value.strip()
        return found


def _batches(keys: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(keys)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
