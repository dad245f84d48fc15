"""Impersonation: headers with which a user acts as another one (apiserver/pkg/endpoints/filters/impersonation)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol
from urllib.parse import unquote

from tonnage_box.apiserver.request.errors import bad_request
from tonnage_box.apiserver.request.user import (
    AUTHENTICATED,
    UNAUTHENTICATED,
    ApiUser,
    Attributes,
    account_groups,
    denied,
    split_account,
)

_USER, _GROUP, _UID, _EXTRA = "impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-"
_AUTHENTICATION = "authentication.k8s.io"
_ANONYMOUS = "system:anonymous"


class Authorizer(Protocol):
    """Decides about one action."""

    def is_allowed(self, user: ApiUser, asked: Attributes) -> bool:
        """Whether the user may do it."""
        ...


def acting_as(authorizer: Authorizer, user: ApiUser, headers: Mapping[str, str]) -> ApiUser:
    """The user that the headers name; each part of it must be allowed to impersonate. Raises: 400, 403.

    headers: a name may come several times.
    """
    given = [(name.lower(), value) for name, value in headers.items()]
    name = next((value for word, value in given if word == _USER), "")
    uid = next((value for word, value in given if word == _UID), "")
    groups = tuple(value for word, value in given if word == _GROUP)
    extra: dict[str, tuple[str, ...]] = {}
    for word, value in given:
        if word.startswith(_EXTRA):
            key = unquote(word.removeprefix(_EXTRA))
            extra[key] = (*extra.get(key, ()), value)
    if not name:
        if not (groups or uid or extra):
            return user
        raise bad_request("requested impersonation of groups, uid or extra without impersonating a user")
    wanted = ApiUser(name, groups, uid, extra)
    for asked in _needed(wanted):
        if not authorizer.is_allowed(user, asked):
            raise denied(user, asked)
    return ApiUser(name, _groups(wanted), uid, extra)


def _needed(wanted: ApiUser) -> Iterator[Attributes]:
    """What must be allowed."""
    if (account := split_account(wanted.name)) is not None:
        yield Attributes("impersonate", resource="serviceaccounts", namespace=account[0], name=account[1])
    else:
        yield Attributes("impersonate", resource="users", name=wanted.name)
    for group in wanted.groups:
        yield Attributes("impersonate", resource="groups", name=group)
    for key, values in wanted.extra.items():
        for value in values:
            yield Attributes("impersonate", _AUTHENTICATION, "userextras", key, name=value)
    if wanted.uid:
        yield Attributes("impersonate", _AUTHENTICATION, "uids", name=wanted.uid)


def _groups(wanted: ApiUser) -> tuple[str, ...]:
    """The groups named, else those of a service account; and the one that each authenticated user is in."""
    account = split_account(wanted.name)
    groups = wanted.groups or (account_groups(account[0]) if account else ())
    everyone = UNAUTHENTICATED if wanted.name == _ANONYMOUS else AUTHENTICATED
    if everyone in groups or UNAUTHENTICATED in groups:
        return groups
    return (*groups, everyone)
