"""Errors of writing to a disk: a full disk is Exhausted, anything else HostError."""

from __future__ import annotations

import errno
from types import TracebackType

from tonnage.errors import Exhausted, HostError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk that is full, or of a quota or limit that is reached."""


class _DiskErrors:
    """Raise an OSError of the body as `what: cause`, or as Exhausted `insufficient free space full: cause`."""

    __slots__ = ("_full", "_what")

    def __init__(self, what: str, *, full: str) -> None:
        self._what, self._full = what, full

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(failure, OSError):
            if failure.errno in FULL:
                raise Exhausted(f"insufficient free space {self._full}: {failure.strerror}") from failure
            raise HostError(f"{self._what}: {failure.strerror}") from failure


disk_errors = _DiskErrors
