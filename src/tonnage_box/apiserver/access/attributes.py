"""Attributes of a request for authorization, from its method and path (apiserver/pkg/endpoints/request)."""

from __future__ import annotations

from urllib.parse import unquote

from tonnage.base.errors import ApiError, InvalidError
from tonnage.kubernetes.api import selectors
from tonnage.kubernetes.client.transport import Request
from tonnage_box.apiserver.request.options import flag
from tonnage_box.apiserver.request.user import Attributes

_VERBS = {
    "POST": "create",
    "GET": "get",
    "HEAD": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}


def of_request(request: Request) -> Attributes:
    """What the request wants to do."""
    parts = [unquote(part) for part in request.path.strip("/").split("/")]
    match parts:
        case ["api", _, first, *rest]:
            return _resource(request, "", [first, *rest])
        case ["apis", group, _, first, *rest]:
            return _resource(request, group, [first, *rest])
    return Attributes(request.method.lower(), path=request.path)


def _resource(request: Request, group: str, parts: list[str]) -> Attributes:
    verb, namespace = _VERBS.get(request.method, request.method.lower()), ""
    if parts[0] == "namespaces" and len(parts) > 1:
        namespace = parts[1]
        if len(parts) > 2 and parts[2] not in ("status", "finalize"):
            parts = parts[2:]
    name, subresource = parts[1] if len(parts) > 1 else "", parts[2] if len(parts) > 2 else ""
    if not name and verb == "delete":
        verb = "deletecollection"
    elif verb == "get" and (not name or "watch" in request.query):
        verb, name = _reading(request, name)
    return Attributes(verb, group, parts[0], subresource, namespace, name)


def _reading(request: Request, name: str) -> tuple[str, str]:
    """Verb and name of a list or watch. A selector of one name asks for that object."""
    try:
        verb = "watch" if flag(request.query, "watch") else "get" if name else "list"
        selector = selectors.parse_fields(request.query.get("fieldSelector", ""))
    except (ApiError, InvalidError):  # rejected later, in the words of the list
        return "list", name
    for requirement in selector.requirements:
        if requirement.key == "metadata.name" and requirement.operator == "In" and len(requirement.values) == 1:
            name = name or next(iter(requirement.values))
    return verb, name
