"""Request options, from query and body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage.base.errors import ApiError, FieldCause, InvalidError
from tonnage.kubernetes.api import selectors
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.selectors import EVERYTHING, Selector
from tonnage_box.apiserver.request.errors import bad_request, invalid
from tonnage_box.apiserver.request.user import ADMIN, ApiUser

_TRUE = {"1", "t", "T", "true", "True", "TRUE", ""}
_FALSE = {"0", "f", "F", "false", "False", "FALSE"}
_NOBODY: Mapping[str, str] = {}


def flag(query: Mapping[str, str], name: str) -> bool:
    """A boolean of the query; named without a value it is true. Raises: a 400."""
    text = query.get(name)
    if text is None or text in _FALSE:
        return False
    if text in _TRUE:
        return True
    raise bad_request(f"query {name}={text[:40]!r} is not true or false")


def number(query: Mapping[str, str], name: str) -> int | None:
    """A non-negative whole number of the query. Raises: a 400."""
    text = query.get(name, "")
    if not text:
        return None
    found = whole(text)
    if found is None:
        raise bad_request(f"query {name}={text[:40]!r} is not a whole number")
    return found


def _dry_run(values: Any) -> bool:
    if not values:
        return False
    if values in ("All", ["All"]):
        return True
    raise _wrong("dryRun", f'Unsupported value: {values!r}: supported values: "All"')


def _wrong(name: str, message: str) -> ApiError:
    return invalid("meta.k8s.io", "Options", "", [FieldCause(name, message)])


@dataclass(frozen=True)
class WriteOptions:
    """Options of create, update and patch. field_validation is "" (as Warn), Ignore, Warn or Strict.

    repeated: complaints about duplicate keys of a YAML body.
    """

    dry_run: bool = False
    field_validation: str = ""
    user: ApiUser = ADMIN
    repeated: tuple[str, ...] = ()

    @classmethod
    def read(cls, query: Mapping[str, str], user: ApiUser) -> WriteOptions:
        """Raises: 400 and 422."""
        if not query:
            return cls(user=user)
        wanted = query.get("fieldValidation", "")
        if wanted not in ("", "Ignore", "Warn", "Strict"):
            raise _wrong(
                "fieldValidation", f'Unsupported value: "{wanted[:40]}": supported: "Ignore", "Strict", "Warn"'
            )
        return cls(_dry_run(query.get("dryRun")), wanted, user)


@dataclass(frozen=True)
class DeleteOptions:
    """Options of delete and eviction; None where the client set nothing."""

    grace: int | None = None
    propagation: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False
    user: ApiUser = ADMIN

    @classmethod
    def read(cls, query: Mapping[str, str], body: Mapping[str, Any], user: ApiUser) -> DeleteOptions:
        """The body's members hold before the query's. Raises: 400 and 422."""
        grace = body.get("gracePeriodSeconds", number(query, "gracePeriodSeconds"))
        if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool)):
            raise bad_request("gracePeriodSeconds is not a whole number")
        policy = body.get("propagationPolicy", query.get("propagationPolicy"))
        orphan = body.get("orphanDependents", flag(query, "orphanDependents") if "orphanDependents" in query else None)
        if policy is not None and orphan is not None:
            raise _wrong("propagationPolicy", "orphanDependents and deletionPropagation cannot be both set")
        if orphan is not None:
            policy = "Orphan" if orphan else "Background"
        if policy not in (None, "Background", "Foreground", "Orphan"):
            raise _wrong("propagationPolicy", f'Unsupported value: "{policy}": want Background, Foreground or Orphan')
        conditions = body.get("preconditions") or _NOBODY
        if not isinstance(conditions, Mapping):
            raise bad_request("preconditions is not an object")
        dry_run = _dry_run(body.get("dryRun") or query.get("dryRun"))
        return cls(grace, policy, conditions.get("uid"), conditions.get("resourceVersion"), dry_run, user)


@dataclass(frozen=True)
class ListOptions:
    """Options of list, watch and deletecollection."""

    labels: Selector = EVERYTHING
    fields: Selector = EVERYTHING
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    match: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout: int | None = None

    @classmethod
    def read(cls, query: Mapping[str, str], field_names: frozenset[str]) -> ListOptions:
        """Raises: 400 and 422."""
        if not query:
            return cls()
        try:
            labels = selectors.parse_labels(query.get("labelSelector", ""))
            fields = selectors.parse_fields(query.get("fieldSelector", ""))
        except InvalidError as error:
            raise bad_request(str(error)) from None
        for requirement in fields.requirements:
            if requirement.key not in field_names and requirement.key not in ("metadata.name", "metadata.namespace"):
                raise bad_request(f'field label not supported: "{requirement.key}"')
        version = query.get("resourceVersion", "")
        if version and whole(version) is None:
            raise bad_request(f"resourceVersion: Invalid value: {version[:40]!r}: not a whole number")
        options = cls(
            labels=labels,
            fields=fields,
            limit=number(query, "limit") or 0,
            continue_token=query.get("continue", ""),
            resource_version=version,
            match=query.get("resourceVersionMatch", ""),
            watch=flag(query, "watch"),
            bookmarks=flag(query, "allowWatchBookmarks"),
            initial_events=flag(query, "sendInitialEvents") if "sendInitialEvents" in query else None,
            timeout=number(query, "timeoutSeconds"),
        )
        options._check()
        return options

    def _check(self) -> None:
        """The rules of meta/v1 ListOptions validation. Raises: a 422."""
        if self.match not in ("", "Exact", "NotOlderThan"):
            raise _wrong("resourceVersionMatch", f'Unsupported value: "{self.match[:40]}": Exact or NotOlderThan')
        if self.watch:
            if self.initial_events is not None and self.match != "NotOlderThan":
                message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                raise _wrong("resourceVersionMatch", message)
            if self.match and self.initial_events is None:
                raise _wrong("resourceVersionMatch", "resourceVersionMatch is forbidden for watch")
            return
        if self.initial_events is not None:
            raise _wrong("sendInitialEvents", "sendInitialEvents is forbidden for list")
        if self.match and not self.resource_version:
            raise _wrong("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided")
        if self.match and self.continue_token:
            raise _wrong("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")
        if self.match == "Exact" and self.resource_version == "0":
            raise _wrong("resourceVersionMatch", 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"')
