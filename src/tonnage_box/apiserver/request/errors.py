"""Errors as Kubernetes Status objects: the one table of codes and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tonnage.base import errors
from tonnage.base.errors import ApiError, FieldCause
from tonnage.kubernetes.api.kinds import Kind

_TABLE: tuple[tuple[type[errors.TonnageError], int, str], ...] = (
    (errors.InvalidError, 400, "BadRequest"),
    (errors.NotFoundError, 404, "NotFound"),
    (errors.AlreadyExistsError, 409, "AlreadyExists"),
    (errors.ExhaustedError, 507, "InsufficientStorage"),
    (errors.OutOfRangeError, 400, "BadRequest"),
    (errors.PreconditionError, 409, "Conflict"),
    (errors.BusyError, 429, "TooManyRequests"),
    (errors.UnsupportedError, 501, "NotImplemented"),
    (errors.UnavailableError, 503, "ServiceUnavailable"),
)


MAX_CAUSES = 1000
"""An answer names no more faults of one object."""


def as_api_error(error: Exception) -> ApiError:
    """The API error that an error of ours amounts to; anything unknown is a 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        return bad_request("the object is nested too deeply")
    for cls, code, reason in _TABLE:
        if isinstance(error, cls):
            return ApiError(str(error), code=code, reason=reason)
    return ApiError(f"an error on the server: {type(error).__name__}: {error}", code=500, reason="InternalError")


def status(error: ApiError) -> dict[str, Any]:
    """The Status object of an error."""
    named = {"name": error.name, "group": error.group, "kind": error.kind}
    details: dict[str, Any] = {name: value for name, value in named.items() if value}
    if error.causes:
        details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in error.causes]
    if error.retry_after is not None:
        details["retryAfterSeconds"] = error.retry_after
    answer: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
    }
    if details:
        answer["details"] = details
    return answer | {"code": error.code}


def success(name: str, kind: Kind[Any], uid: str) -> dict[str, Any]:
    """The Status of a deletion that is done."""
    details = {"name": name, "kind": kind.plural, "uid": uid} | ({"group": kind.group} if kind.group else {})
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def created() -> dict[str, Any]:
    """The Status that binding and eviction answer."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def bad_request(message: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(message, code=400, reason="BadRequest")


def too_large(what: str) -> ApiError:
    """413: more bytes or values than the server takes."""
    return ApiError(f"Request entity too large: {what}", code=413, reason="RequestEntityTooLarge")


def not_acceptable(accepted: str) -> ApiError:
    """406: none of what the client accepts is served. accepted: what would be, and why."""
    return ApiError(f"only the following media types are accepted: {accepted}", code=406, reason="NotAcceptable")


def not_built(what: str) -> ApiError:
    """501: Kubernetes has it, this server has not."""
    return ApiError(what, code=501, reason="NotImplemented")


def method_not_allowed(what: str) -> ApiError:
    """405: nothing here answers to that verb."""
    return ApiError(what, code=405, reason="MethodNotAllowed")


def not_found(kind: Kind[Any], name: str) -> ApiError:
    """404 in the words of Kubernetes."""
    message = f'{kind.qualified} "{name}" not found'
    return errors.ApiNotFoundError(message, group=kind.group, kind=kind.plural, name=name)


def already_exists(kind: Kind[Any], name: str) -> ApiError:
    """409 for a name that is taken, in the words of Kubernetes."""
    message = f'{kind.qualified} "{name}" already exists'
    return errors.ApiAlreadyExistsError(message, group=kind.group, kind=kind.plural, name=name)


def conflict(kind: Kind[Any], name: str, why: str, *, subresource: str = "") -> ApiError:
    """409 for a precondition that does not hold, in the words of Kubernetes."""
    what = f"{kind.qualified}/{subresource}" if subresource else kind.qualified
    message = f'Operation cannot be fulfilled on {what} "{name}": {why}'
    return errors.ApiConflictError(message, group=kind.group, kind=kind.plural, name=name)


def wrong_precondition(
    kind: Kind[Any], name: str, field: str, wanted: str, found: str, *, subresource: str = ""
) -> ApiError:
    """409 for another uid or resourceVersion than the client expects."""
    why = f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
    return conflict(kind, name, why, subresource=subresource)


def invalid(group: str, kind: str, name: str, causes: Sequence[FieldCause]) -> ApiError:
    """422 with all causes, in the words of Kubernetes."""
    what = f"{kind}.{group}" if group else kind
    if len(causes) > MAX_CAUSES:
        more = FieldCause("", f"and {len(causes) - MAX_CAUSES} more faults", "FieldValueTooMany")
        causes = [*causes[:MAX_CAUSES], more]
    lines = [f"{c.field}: {c.message}" if c.field else c.message for c in causes]
    text = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    return errors.ApiInvalidError(
        f'{what} "{name}" is invalid: {text}', causes=causes, group=group, kind=kind, name=name
    )


def forbidden(kind: Kind[Any], name: str, why: str, causes: Sequence[FieldCause] = ()) -> ApiError:
    """403 in the words of Kubernetes."""
    message = f'{kind.qualified} "{name}" is forbidden: {why}'
    return ApiError(message, code=403, reason="Forbidden", causes=causes, group=kind.group, kind=kind.plural, name=name)
