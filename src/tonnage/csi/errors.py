"""Conversion between our errors and gRPC codes, and CsiError, the error of a CSI call.

It makes no calls, so controllers and the kubelet may import it.
"""

from __future__ import annotations

from grpclib.const import Status

from tonnage.base import errors

Code = Status
"""gRPC's status codes."""

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


def label_of(code: Code) -> str:
    """The code as grpc-go prints it, in Events and metrics: "ResourceExhausted"."""
    return _LABELS[code]


class CsiError(errors.TonnageError):
    """A failed CSI call. str() is the text that grpc-go prints for a status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"rpc error: code = {label_of(code)} desc = {message}")
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
