"""Every error of the domain. The CSI services turn them into gRPC codes, the API server into Status objects,
the command line into exit codes; all others let them pass.

    TonnageError
    ├── Invalid            the request itself is wrong; repeating it unchanged is useless
    ├── NotFound           what was named does not exist
    ├── AlreadyExists      the name is taken by something that differs from what was asked
    ├── Exhausted          there is no room (now, here)
    ├── OutOfRange         the size can never be had here, however empty the pool is
    ├── Precondition       the thing is in a state that forbids the operation (in use, not staged ...)
    │   └── InUse          it is used now, perhaps only for a moment longer
    ├── Busy               another operation on the same thing is under way
    ├── Unsupported        understood, but not offered
    ├── Unavailable        the pool, server or socket cannot be reached just now
    ├── HostError          the kernel or a program of the machine failed
    └── ApiError           an answer of a Kubernetes API server: code, reason, message, causes
        ├── ApiNotFound        404
        ├── ApiAlreadyExists   409 with reason AlreadyExists
        ├── ApiConflict        409 otherwise
        ├── ApiGone            410: the resourceVersion is too old, list again
        ├── ApiInvalid         422
        └── ApiUnreadable      an object in an answer has a field of the wrong type

Messages say what was asked, what was found and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class TonnageError(Exception):
    """Root of the tree above."""


class Invalid(TonnageError):
    """The request is wrong in itself."""


class NotFound(TonnageError):
    """What was named does not exist."""


class AlreadyExists(TonnageError):
    """The name is taken by something different."""


class Exhausted(TonnageError):
    """There is no room now."""


class OutOfRange(TonnageError):
    """A size that can never be had here."""


class Precondition(TonnageError):
    """The thing's state forbids the operation."""


class InUse(Precondition):
    """Somebody still uses the thing, perhaps not for longer than a moment; repeat soon."""


class Busy(TonnageError):
    """Another operation on the same thing is under way; repeat later."""


class Unsupported(TonnageError):
    """Understood, but not offered."""


class Unavailable(TonnageError):
    """Cannot be reached just now; repeat later."""


class HostError(TonnageError):
    """The kernel or a program of the machine failed."""


@dataclass(frozen=True)
class Cause:
    """One field's fault inside an ApiError (meta/v1 StatusCause)."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiError(TonnageError):
    """An error answer of a Kubernetes API server (meta/v1 Status).

    `code` is the HTTP status, `reason` the machine-readable word, `retry_after` whole seconds or None.
    `group`, `kind` and `name` fill Status.details.
    """

    code = 500
    reason = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        reason: str | None = None,
        causes: Sequence[Cause] = (),
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


class ApiNotFound(ApiError):
    """404."""

    code = 404
    reason = "NotFound"


class ApiAlreadyExists(ApiError):
    """409, the name is taken."""

    code = 409
    reason = "AlreadyExists"


class ApiConflict(ApiError):
    """409, a precondition (resourceVersion, uid) does not hold."""

    code = 409
    reason = "Conflict"


class ApiGone(ApiError):
    """410, the resourceVersion is too old: list again."""

    code = 410
    reason = "Expired"


class ApiInvalid(ApiError):
    """422, the object does not pass validation."""

    code = 422
    reason = "Invalid"


class ApiUnreadable(ApiError):
    """An object that the API server sent has a field of the wrong type.

    The object exists. Do not treat it as deleted.
    """

    reason = "Unreadable"


def api_error(code: int, reason: str, message: str, **details: object) -> ApiError:
    """Make the ApiError subclass that fits an HTTP code and reason."""
    classes = {404: ApiNotFound, 410: ApiGone, 422: ApiInvalid}
    cls = classes.get(code, ApiError)
    if code == 409:
        cls = ApiAlreadyExists if reason == "AlreadyExists" else ApiConflict
    return cls(message, code=code, reason=reason or None, **details)  # type: ignore[arg-type]
