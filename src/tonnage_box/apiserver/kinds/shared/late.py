"""Modules that are imported on first use: most boxes have no objects of most kinds, and programs ask for no tables."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any


class LateModule:
    """Takes the place of a module in a row. Its attributes are LateParts: functions and sequences of the module."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> LatePart:
        return LatePart(self._name, name)


class LatePart(Sequence[Any]):
    """A function or a sequence of a module. The module is imported when it is called or read."""

    __slots__ = ("_module", "_name")

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _found(self) -> Any:
        return getattr(import_module(self._module), self._name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._found()(*args, **options)

    def __getitem__(self, index: Any) -> Any:
        return self._found()[index]

    def __len__(self) -> int:
        return len(self._found())
