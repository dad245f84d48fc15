"""Review kinds: answered at create, never stored (authentication.k8s.io, authorization.k8s.io)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tonnage.base.errors import FieldCause
from tonnage_box.apiserver.access.access import ApiAccess
from tonnage_box.apiserver.access.rule import ALL, Rule
from tonnage_box.apiserver.access.token import ISSUER, TokenError
from tonnage_box.apiserver.request.errors import bad_request, invalid
from tonnage_box.apiserver.request.routes import RequestPath
from tonnage_box.apiserver.request.user import ApiUser, Attributes
from tonnage_box.apiserver.storage.store import Obj

_CAUSE = "FieldValueInvalid"
_MASTER_RULES = (
    Rule.read({"apiGroups": [ALL], "resources": [ALL], "verbs": [ALL]}),
    Rule.read({"nonResourceURLs": [ALL], "verbs": [ALL]}),
)


async def answer(access: ApiAccess, place: RequestPath, review: Obj, user: ApiUser) -> Obj:
    """The review with its status. Raises: 400, 422."""
    kind = place.resource.kind
    place.resource.normalize(review)
    result: Obj = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {"creationTimestamp": None}}
    spec = review.get("spec", {})
    match kind.kind:
        case "SelfSubjectReview":
            return result | {"status": {"userInfo": user.info()}}
        case "TokenReview":
            status = await _token(access, spec)
            return result | {"spec": {k: v for k, v in spec.items() if k != "token"}, "status": status}
        case "SelfSubjectRulesReview":
            if not spec.get("namespace"):
                raise bad_request("no namespace on request")
            return result | {"spec": spec, "status": _rules(access, user, spec["namespace"])}
        case "SelfSubjectAccessReview":
            asked = _attributes(kind.kind, spec)
        case _:
            asked, user = _attributes(kind.kind, spec), _subject(kind.kind, spec)
            _check_namespace(place, spec)
    if place.namespace is not None:
        result["metadata"]["namespace"] = place.namespace
    return result | {"spec": spec, "status": _decision(access, user, asked)}


def _decision(access: ApiAccess, user: ApiUser, asked: Attributes) -> Obj:
    if user.is_master:
        return {"allowed": True}
    binding = access.roles.allowing(user, asked)
    return {"allowed": False} if binding is None else {"allowed": True, "reason": binding.reason(user)}


def _attributes(kind: str, spec: Obj) -> Attributes:
    """The action that a review asks about. Raises: a 422 unless there is exactly one."""
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        why = "cannot be specified in combination with resourceAttributes"
        raise _rejected(kind, "spec.nonResourceAttributes", f"Invalid value: {why}")
    if resource is None and path is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise _rejected(kind, "spec.resourceAttributes", f"Invalid value: null: {why}")
    if path is not None:
        return Attributes(path.get("verb", ""), path=path.get("path", "") or "/")
    words = ("verb", "group", "resource", "subresource", "namespace", "name")
    return Attributes(*(str((resource or {}).get(word) or "") for word in words))


def _subject(kind: str, spec: Obj) -> ApiUser:
    name, groups = spec.get("user", ""), tuple(spec.get("groups") or ())
    if not name and not groups:
        raise _rejected(kind, "spec.user", 'Invalid value: "": at least one of user or group must be specified')
    extra = {key.lower(): tuple(values) for key, values in (spec.get("extra") or {}).items()}
    return ApiUser(name, groups, spec.get("uid", ""), extra)


def _check_namespace(place: RequestPath, spec: Obj) -> None:
    """A LocalSubjectAccessReview asks about its own namespace. Raises: 400, 422."""
    if not place.resource.kind.namespaced:
        return
    resource = spec.get("resourceAttributes")
    if resource is None:
        raise _rejected(
            place.resource.kind.kind, "spec.nonResourceAttributes", "Invalid value: disallowed on this kind of request"
        )
    if resource.get("namespace", "") != place.namespace:
        raise bad_request(f"spec.resourceAttributes.namespace must match namespace: {place.namespace}")


def _rejected(kind: str, field: str, message: str) -> Exception:
    return invalid("authorization.k8s.io", kind, "", [FieldCause(field, message, _CAUSE)])


async def _token(access: ApiAccess, spec: Obj) -> Obj:
    """Status of a TokenReview."""
    token = spec.get("token", "")
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    audiences = [str(word) for word in spec.get("audiences") or ()]
    try:
        user, valid = await access.authenticator.token_user(token, audiences or [ISSUER])
    except TokenError as error:
        return {"authenticated": False, "user": {}, "error": f"[invalid bearer token, {error}]"}
    if audiences and not valid:
        return {"authenticated": False, "user": {}, "error": "token is for another audience"}
    return {"authenticated": True, "user": user.info(), "audiences": valid}


def _rules(access: ApiAccess, user: ApiUser, namespace: str) -> Obj:
    rules: Iterable[Rule] = _MASTER_RULES if user.is_master else access.roles.rules_of(user, namespace)
    shown: Obj = {"resourceRules": [], "nonResourceRules": [], "incomplete": False}
    for rule in dict.fromkeys(rules):
        fields: dict[str, Any] = {"verbs": sorted(rule.verbs)}
        if rule.urls:
            shown["nonResourceRules"].append(fields | {"nonResourceURLs": sorted(rule.urls)})
            continue
        fields |= {"apiGroups": sorted(rule.groups), "resources": sorted(rule.resources)}
        if rule.names:
            fields["resourceNames"] = sorted(rule.names)
        shown["resourceRules"].append(fields)
    return shown
