"""Every Struct of the API, and values for their types: right, null and wrong."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from tonnage.kubernetes import api
from tonnage.kubernetes.api.meta import Object

SAMPLES: tuple[Any, ...] = ("text", 7, 1.5, True, [1], [[]], {"key": 1}, {"key": []})
"""One value or more of every JSON type but null."""
Type = inspect.Type
ENTRY = "an entry"
"""The key of a map, which no field has as its name."""
NULL = object()
"""Instead of a value: what must be read as if it were absent."""


def structs() -> list[type[Object]]:
    """All Structs of tonnage.kubernetes.api."""
    for module in pkgutil.iter_modules(api.__path__):
        importlib.import_module(f"tonnage.kubernetes.api.{module.name}")
    return sorted(
        (s for s in _below(Object) if s.__module__.startswith("tonnage.kubernetes.api.")), key=lambda s: s.__name__
    )


def _below(struct: type[Object]) -> Iterator[type[Object]]:
    for below in struct.__subclasses__():
        yield below
        yield from _below(below)


def alternatives(form: Type) -> tuple[Type, ...]:
    return form.types if isinstance(form, inspect.UnionType) else (form,)


def allows_none(form: Type) -> bool:
    return any(isinstance(t, inspect.NoneType | inspect.AnyType) for t in alternatives(form))


def wrong(form: Type) -> list[Any]:
    """Samples that the type does not take."""
    found = []
    for sample in SAMPLES:
        try:
            msgspec.convert(sample, _python(form))
        except msgspec.ValidationError:
            found.append(sample)
    return found


def _python(form: Type) -> Any:
    """The type, told by what inspect made of it; of containers only that they are some."""
    kinds: dict[type[Type], Any] = {
        inspect.StrType: str,
        inspect.IntType: int,
        inspect.FloatType: float,
        inspect.BoolType: bool,
        inspect.NoneType: None,
        inspect.AnyType: Any,
        inspect.ListType: list,
        inspect.DictType: dict,
        inspect.StructType: dict,
    }
    python = kinds[type(alternatives(form)[0])]
    for more in alternatives(form)[1:]:
        python = python | kinds[type(more)]
    return python


def paths(form: Type, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Type]]:
    """Every place in a value of the type: the names of fields, 0 for an element, ENTRY for a value of a map."""
    for one in alternatives(form):
        inner: list[tuple[str | int, Type]] = []
        if isinstance(one, inspect.StructType):
            inner = [(field.encode_name, field.type) for field in one.fields]
        elif isinstance(one, inspect.ListType):
            inner = [(0, one.item_type)]
        elif isinstance(one, inspect.DictType):
            inner = [(ENTRY, one.value_type)]
        for step, below in inner:
            yield (*path, step), below
            yield from paths(below, (*path, step))


def at(path: tuple[str | int, ...], value: Any) -> Any:
    """The smallest value that has value at path."""
    for step in reversed(path):
        value = [value] if step == 0 else {step: value}
    return value


def written(path: tuple[str | int, ...]) -> str:
    """The path as messages have it: `spec.drivers[0].name`, `[...]` for the value of a map."""
    text = ""
    for step in path:
        text += "[0]" if step == 0 else "[...]" if step == ENTRY else f".{step}"
    return text.removeprefix(".")


def values(form: Type) -> st.SearchStrategy[tuple[Any, Any]]:
    """Pairs: a value with nulls anywhere, and what it is to be read as."""
    one = alternatives(form)[0] if not isinstance(alternatives(form)[0], inspect.NoneType) else alternatives(form)[1]
    if isinstance(one, inspect.StructType):
        return values_of(one.cls)
    if isinstance(one, inspect.ListType):
        items = st.lists(_element(one.item_type), max_size=3)
        return items.map(lambda pairs: ([dirty for dirty, _ in pairs], [clean for _, clean in pairs]))
    if isinstance(one, inspect.DictType):
        entries = st.dictionaries(st.text(max_size=3), _element(one.value_type), max_size=3)
        return entries.map(
            lambda pairs: ({k: dirty for k, (dirty, _) in pairs.items()}, {k: clean for k, (_, clean) in pairs.items()})
        )
    return _scalar(one).map(lambda value: (value, value))


@cache
def values_of(struct: type) -> st.SearchStrategy[tuple[Any, Any]]:
    """The same for a Struct; made once, as making it takes longer than an example."""
    form = inspect.type_info(struct)
    assert isinstance(form, inspect.StructType)
    found = st.fixed_dictionaries(
        {},
        optional={
            field.encode_name: st.one_of(values(field.type), st.just((None, None if allows_none(field.type) else NULL)))
            for field in form.fields
        },
    )
    return found.map(
        lambda pairs: (
            {name: dirty for name, (dirty, _) in pairs.items()},
            {name: clean for name, (_, clean) in pairs.items() if clean is not NULL},
        )
    )


def _element(form: Type) -> st.SearchStrategy[tuple[Any, Any]]:
    zero: dict[type[Type], Any] = {
        inspect.StrType: "",
        inspect.IntType: 0,
        inspect.BoolType: False,
        inspect.ListType: [],
        inspect.DictType: {},
        inspect.StructType: {},
        inspect.AnyType: None,
    }
    return st.one_of(values(form), st.just((None, zero[type(form)])))


def _scalar(form: Type) -> st.SearchStrategy[Any]:
    if isinstance(form, inspect.AnyType):
        return st.sampled_from([None, *SAMPLES])
    return {
        inspect.StrType: st.text(max_size=5),
        inspect.IntType: st.integers(-(2**63), 2**63 - 1),
        inspect.BoolType: st.booleans(),
    }[type(form)]
