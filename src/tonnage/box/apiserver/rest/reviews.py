"""Review kinds: answered at create, never stored. Every authenticated user may do everything."""

from __future__ import annotations

from collections.abc import Callable

from tonnage.box.apiserver.request.errors import bad_request
from tonnage.box.apiserver.request.resource import Resource
from tonnage.box.apiserver.storage.store import Obj

USER = "kubernetes-admin"
GROUPS = ["system:masters", "system:authenticated"]
TokenCheck = Callable[[str], str | None]


def answer(resource: Resource, review: Obj, user: str, token_user: TokenCheck) -> Obj:
    """The review with its status. Raises a 400 on a review without spec."""
    kind = resource.kind
    result: Obj = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {"creationTimestamp": None}}
    spec = review.get("spec", {})
    if not isinstance(spec, dict):
        raise bad_request("spec is not an object")
    if kind.kind == "SelfSubjectReview":
        return result | {"status": {"userInfo": _user(user)}}
    result["spec"] = spec
    if kind.kind == "SelfSubjectAccessReview":
        if ("resourceAttributes" in spec) == ("nonResourceAttributes" in spec):
            raise bad_request("spec: exactly one of resourceAttributes and nonResourceAttributes must be set")
        return result | {"status": {"allowed": True, "reason": "the box has one user, who may do everything"}}
    if kind.kind == "SelfSubjectRulesReview":
        return result | {"status": _rules()}
    found = token_user(str(spec.get("token", "")))  # a TokenReview
    status: Obj = {"authenticated": found is not None, "user": _user(found) if found is not None else {}}
    return result | {"spec": {k: v for k, v in spec.items() if k != "token"}, "status": status}


def _user(name: str) -> Obj:
    return {"username": name, "groups": GROUPS}


def _rules() -> Obj:
    return {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }
