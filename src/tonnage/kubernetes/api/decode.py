"""JSON decoding as in Go: null is absent, unless the field's type allows None.

Kubernetes writes null for a list or map that is empty and not marked omitempty (`spec.drivers` of a CSINode). The typed
decoder rejects that, so only what it rejects is read a second time, without the nulls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

T = TypeVar("T")
_ZERO: dict[type[inspect.Type], Callable[[], Any]] = {
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
    inspect.ListType: list,
    inspect.DictType: dict,
    inspect.StructType: dict,
}
_CONTAINERS = (inspect.StructType, inspect.ListType, inspect.DictType)


def decode(data: bytes | msgspec.Raw, form: type[T]) -> T:
    """Read JSON.

    Raises: ValueError (msgspec.ValidationError names the field), RecursionError.
    """
    try:
        return cast(T, _decoder(form).decode(data))
    except msgspec.ValidationError:
        if b"null" not in bytes(data):
            raise
    return msgspec.convert(_null_remover(form)(msgspec.json.decode(data)), form)


def convert(value: Any, form: type[T]) -> T:
    """Read plain data. value stays as it is. Raises: msgspec.ValidationError."""
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError:
        return msgspec.convert(_null_remover(form)(value), form)


def _remover(form: inspect.Type) -> Callable[[Any], Any]:
    """Return a function that copies a value without the nulls that its type does not allow.

    It leaves a value of a wrong type alone, because the decoder then reports that type.
    """
    if isinstance(form, inspect.UnionType):
        return _remover(next((t for t in form.types if isinstance(t, _CONTAINERS)), inspect.AnyType()))
    if isinstance(form, inspect.StructType):
        known = {field.encode_name: (_allows_none(field.type), _remover(field.type)) for field in form.fields}
        return functools.partial(_fields, known)
    if isinstance(form, inspect.ListType):
        return functools.partial(_items, _zero(form.item_type), _remover(form.item_type))
    if isinstance(form, inspect.DictType):
        return functools.partial(_values, _zero(form.value_type), _remover(form.value_type))
    return lambda value: value


_decoder: Callable[[Any], msgspec.json.Decoder[Any]] = functools.cache(msgspec.json.Decoder)
_null_remover: Callable[[Any], Callable[[Any], Any]] = functools.cache(lambda form: _remover(inspect.type_info(form)))


def _fields(known: dict[str, tuple[bool, Callable[[Any], Any]]], value: Any) -> Any:
    """Drop null fields: each gets its default, which need not be zero, as the API server applies defaults first."""
    if not isinstance(value, dict):
        return value
    found = {name: item for name, item in value.items() if name in known and (item is not None or known[name][0])}
    return {name: known[name][1](item) for name, item in found.items()}


def _items(zero: Callable[[], Any], remover: Callable[[Any], Any], value: Any) -> Any:
    return [zero() if item is None else remover(item) for item in value] if isinstance(value, list) else value


def _values(zero: Callable[[], Any], remover: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: zero() if item is None else remover(item) for key, item in value.items()}


def _zero(form: inspect.Type) -> Callable[[], Any]:
    return _ZERO.get(type(form), lambda: None)


def _allows_none(form: inspect.Type) -> bool:
    types = form.types if isinstance(form, inspect.UnionType) else (form,)
    return any(isinstance(t, inspect.NoneType | inspect.AnyType) for t in types)
