"""Conversion between our errors and gRPC codes, and CsiError, the error of a CSI call.

It needs no gRPC library, so controllers and the kubelet may import it.
"""

from __future__ import annotations

from enum import IntEnum

from tonnage import errors


class Code(IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @property
    def label(self) -> str:
        """As grpc-go prints it, in Events and metrics: "ResourceExhausted"."""
        return _LABELS[self]


_LABELS = {code: "".join(word.capitalize() for word in code.name.split("_")) for code in Code}
_LABELS[Code.OK] = "OK"
_LABELS[Code.CANCELLED] = "Canceled"

CODES: tuple[tuple[type[BaseException], Code], ...] = (
    (errors.InvalidError, Code.INVALID_ARGUMENT),
    # Understood but not offered: the same request can never succeed here, which INVALID_ARGUMENT tells a CO and
    # UNIMPLEMENTED (the whole call is missing) does not.
    (errors.UnsupportedError, Code.INVALID_ARGUMENT),
    (errors.NotFoundError, Code.NOT_FOUND),
    (errors.AlreadyExistsError, Code.ALREADY_EXISTS),
    (errors.ExhaustedError, Code.RESOURCE_EXHAUSTED),
    (errors.OutOfRangeError, Code.OUT_OF_RANGE),
    (errors.PreconditionError, Code.FAILED_PRECONDITION),
    (errors.BusyError, Code.ABORTED),
    (errors.UnavailableError, Code.UNAVAILABLE),
    (errors.HostError, Code.INTERNAL),
)
"""The code of each of our errors; others are INTERNAL."""

_IN_BACKGROUND = frozenset({Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED})


class CsiError(errors.TonnageError):
    """A failed CSI call. str() is the text that grpc-go prints for a status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"rpc error: code = {code.label} desc = {message}")
        self.code = code
        self.message = message

    @property
    def final(self) -> bool:
        """Whether nothing continues in the background: the call need not be repeated to learn its outcome.

        For controller calls, as external-provisioner decides it.
        """
        return self.code not in _IN_BACKGROUND

    @property
    def node_final(self) -> bool:
        """The same for NodeStage and NodePublish, where ResourceExhausted is not final."""
        return self.final and self.code is not Code.RESOURCE_EXHAUSTED

    @property
    def infeasible(self) -> bool:
        """Whether the request is infeasible: it can never succeed unchanged."""
        return self.code is Code.INVALID_ARGUMENT

    @property
    def exhausted(self) -> bool:
        """Whether capacity is insufficient here and now: another node may have it."""
        return self.code is Code.RESOURCE_EXHAUSTED


def to_csi(failure: BaseException) -> CsiError:
    """The CsiError that a driver returns for any exception."""
    if isinstance(failure, CsiError):
        return failure
    for kind, code in CODES:
        if isinstance(failure, kind):
            return CsiError(code, str(failure))
    return CsiError(Code.INTERNAL, f"{type(failure).__name__}: {failure}")


def expected(failure: BaseException) -> bool:
    """Whether an exception is in the table of codes, rather than a bug."""
    return isinstance(failure, (CsiError, *(kind for kind, _ in CODES)))
