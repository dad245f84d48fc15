"""Rows of authentication.k8s.io and authorization.k8s.io: questions that are answered and never stored."""

from __future__ import annotations

from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import PartialObject
from tonnage_box.apiserver.request.resource import Resource

_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"


def _review(group: str, kind: str, *, namespaced: bool = False) -> Resource:
    row = Kind(group, kind, kind.lower() + "s", PartialObject, namespaced=namespaced)
    return Resource(row, verbs=("create",))


ROWS: tuple[Resource, ...] = (
    _review(_AUTHENTICATION, "TokenReview"),
    _review(_AUTHENTICATION, "SelfSubjectReview"),
    _review(_AUTHORIZATION, "SubjectAccessReview"),
    _review(_AUTHORIZATION, "LocalSubjectAccessReview", namespaced=True),
    _review(_AUTHORIZATION, "SelfSubjectAccessReview"),
    _review(_AUTHORIZATION, "SelfSubjectRulesReview"),
)
