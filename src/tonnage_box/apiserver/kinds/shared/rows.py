"""Parts of the groups' rows: a row with the admission that most kinds have, fields from paths, status."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tonnage.kubernetes.api.kinds import Kind
from tonnage_box.apiserver.admission import plugins
from tonnage_box.apiserver.kinds.shared.strategy import without_status
from tonnage_box.apiserver.printers.table import Column, dig
from tonnage_box.apiserver.request.resource import Default, Resource, Validate, nothing
from tonnage_box.apiserver.storage.store import Obj

STATUS: dict[str, Any] = {"subresources": frozenset({"status"})}
OWN_STATUS: dict[str, Any] = STATUS | {"prepare": without_status}
"""Kinds whose status is written by its owner, later."""
ONE_NETWORK = "containers share the machine's network: connect to 127.0.0.1 and the container's port"
"""Why Services and what belongs to them have no effect."""


def row(
    kind: Kind[Any], validate: Validate, columns: Sequence[Column] = (), default: Default = nothing, **hooks: Any
) -> Resource:
    """A row; admission of a namespaced kind checks its namespace and quota, unless hooks says otherwise."""
    if kind.namespaced:
        hooks.setdefault("admit", plugins.plain(kind))
    return Resource(kind, validate=validate, columns=columns, default=default, **hooks)


def stored(
    kind: Kind[Any],
    why: str,
    validate: Validate,
    columns: Sequence[Column] = (),
    default: Default = nothing,
    **hooks: Any,
) -> Resource:
    """A row of a kind that the box stores and does not act on.

    A write is answered with a warning that says so, so that charts install and no one waits for an effect.
    """
    return row(kind, validate, columns, default, notice=f"{kind.qualified}: stored, not acted on: {why}", **hooks)


def paths(**paths: tuple[str, ...]) -> Callable[[Obj], Mapping[str, str]]:
    """A Resource's fields from paths; the words' double underscores stand for dots."""
    named = {word.replace("__", "."): path for word, path in paths.items()}
    return lambda obj: {word: text(dig(obj, *path)) for word, path in named.items()}


def in_spec(*words: str) -> Callable[[Obj], Mapping[str, str]]:
    """A Resource's fields from its spec."""
    return lambda obj: {f"spec.{word}": str(dig(obj, "spec", word) or "") for word in words}


def text(value: Any) -> str:
    """A value as field selectors write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
