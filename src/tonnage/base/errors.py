"""All errors that tonnage raises.

The CSI services convert them to gRPC codes, the API server into Status objects, the command line into exit codes; all
others let them pass.

    TonnageError
    ├── InvalidError            the request itself is wrong; repeating it unchanged is useless
    ├── NotFoundError           the named object does not exist
    ├── AlreadyExistsError      the name is taken by something that differs from the request
    ├── ExhaustedError          insufficient capacity (now, here)
    │   └── DoesNotFitError     even after evicting all deleted volumes
    ├── OutOfRangeError         the size can never fit here, even in an empty pool
    ├── PreconditionError       the object's state forbids the operation (in use, not staged ...)
    │   └── InUseError          it is in use, perhaps only for a moment
    ├── BusyError               another operation on the same object is under way
    ├── UnsupportedError        understood, but not offered
    ├── UnavailableError        the pool, server or socket is unreachable now
    ├── HostError          the kernel or a program of the machine failed
    └── ApiError           an error response of a Kubernetes API server: code, reason, message, causes
        ├── ApiNotFoundError        404
        ├── ApiAlreadyExistsError   409 with reason AlreadyExists
        ├── ApiConflictError        409 otherwise
        ├── ApiGoneError            410: the resourceVersion is too old, list again
        ├── ApiInvalidError         422
        └── ApiUnreadableError      an object in a response has a field of the wrong type

Messages have the form `<object>: <what failed>: <cause>; <what to do>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType


class TonnageError(Exception):
    """Base of all errors above."""


class InvalidError(TonnageError):
    """The request itself is wrong."""


class NotFoundError(TonnageError):
    """The named object does not exist."""


class AlreadyExistsError(TonnageError):
    """The name is taken by something different."""


class ExhaustedError(TonnageError):
    """Insufficient capacity now."""


class DoesNotFitError(ExhaustedError):
    """Insufficient capacity now, even after evicting all deleted volumes."""


class OutOfRangeError(TonnageError):
    """A size that can never fit here."""


class PreconditionError(TonnageError):
    """The object's state forbids the operation."""


class InUseError(PreconditionError):
    """In use, perhaps only for a moment; repeat soon."""


class BusyError(TonnageError):
    """Another operation on the same object is under way; repeat later."""


class UnsupportedError(TonnageError):
    """Understood, but not offered."""


class UnavailableError(TonnageError):
    """Unreachable now; repeat later."""


class HostError(TonnageError):
    """The kernel or a program of the machine failed."""


class _HostErrors:
    """Raise an OSError of the body as `what: <the kernel's words>; advice`.

    error: the class to raise. Other exceptions pass unchanged. Costs no system call.
    """

    __slots__ = ("_advice", "_error", "_what")

    def __init__(self, what: str, *, advice: str = "", error: type[TonnageError] = HostError) -> None:
        self._what = what
        self._advice = f"; {advice}" if advice else ""
        self._error = error

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(failure, OSError):
            raise self._error(f"{self._what}: {failure.strerror or failure}{self._advice}") from failure


host_errors = _HostErrors
"""A class, as contextlib.suppress is one: a generator would cost four times as much on each call."""


class _IgnoreErrno:
    """Leave the body at an OSError with one of these numbers; all other exceptions pass."""

    __slots__ = ("_numbers",)

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return isinstance(failure, OSError) and failure.errno in self._numbers


ignore_errno = _IgnoreErrno


@dataclass(frozen=True)
class FieldCause:
    """The error of one field in an ApiError (meta/v1 StatusCause)."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiError(TonnageError):
    """An error response of a Kubernetes API server (meta/v1 Status).

    `code` is the HTTP status, `reason` the machine-readable word, `retry_after` whole seconds or None. `group`, `kind`
    and `name` fill Status.details.
    """

    code = 500
    reason = "InternalError"

    def __init__(  # noqa: PLR0913  # the fields of a Status
        self,
        message: str,
        *,
        code: int | None = None,
        reason: str | None = None,
        causes: Sequence[FieldCause] = (),
        group: str = "",
        kind: str = "",
        name: str = "",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = self.code if code is None else code
        self.reason = self.reason if reason is None else reason
        self.causes = tuple(causes)
        self.group = group
        self.kind = kind
        self.name = name
        self.retry_after = retry_after


class ApiNotFoundError(ApiError):
    """404."""

    code = 404
    reason = "NotFound"


class ApiAlreadyExistsError(ApiError):
    """409, the name is taken."""

    code = 409
    reason = "AlreadyExists"


class ApiConflictError(ApiError):
    """409, a precondition (resourceVersion, uid) does not hold."""

    code = 409
    reason = "Conflict"


class ApiGoneError(ApiError):
    """410, the resourceVersion is too old: list again."""

    code = 410
    reason = "Expired"


class ApiInvalidError(ApiError):
    """422, the object does not pass validation."""

    code = 422
    reason = "Invalid"


class ApiUnreadableError(ApiError):
    """An object that the API server sent has a field of the wrong type.

    The object exists. Do not treat it as deleted.
    """

    reason = "Unreadable"


def api_error(code: int, reason: str, message: str, **details: object) -> ApiError:
    """The ApiError subclass for an HTTP code and reason."""
    classes = {404: ApiNotFoundError, 410: ApiGoneError, 422: ApiInvalidError}
    cls = classes.get(code, ApiError)
    if code == 409:
        cls = ApiAlreadyExistsError if reason == "AlreadyExists" else ApiConflictError
    return cls(message, code=code, reason=reason or None, **details)  # type: ignore[arg-type]
