"""Options of the programs, each declared once: at a field of a configuration.

`Annotated[T, Option(...)]` at a field of a frozen dataclass declares a flag of the command line, a key of the
configuration file, an environment variable and the check of a value. The field's default is the option's default.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

import msgspec

from tonnage.base.errors import InvalidError

Values = Mapping[str, Any]
"""Values as people write them, by the options' names. A missing or empty value was not given."""


@dataclass(frozen=True)
class Option:
    """Declaration of one option.

    help, metavar: of the flag. name: of the option, the field's name by default. written: type of a written value: str,
    int, bool for a switch, or list[str] for a flag that may be repeated. choices: allowed values; empty: all. parse:
    returns the field's value of a written value; raises InvalidError. wanted: describes a number, which is at least 0.
    environ: variable that gives the value otherwise. adds: whether the values of the command line and the file add up;
    else the command line wins.
    """

    help: str
    metavar: str | None = None
    name: str = ""
    written: Any = str
    choices: Sequence[str] = ()
    parse: Callable[[Any], Any] = lambda value: value
    wanted: str = ""
    environ: str = ""
    adds: bool = False

    @property
    def key(self) -> str:
        """Key in the configuration file."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))

    @property
    def flag(self) -> str:
        """Flag of the command line: the singular, if it may be repeated."""
        name = self.name.removesuffix("s") if self.is_list else self.name
        return f"--{name.replace('_', '-')}"

    @property
    def is_list(self) -> bool:
        """Whether the flag may be repeated."""
        return bool(self.written == list[str])

    def add_to(self, parser: argparse.ArgumentParser, *, remark: str = "") -> None:
        """Add the flag. remark: appended to its help."""
        if self.written is bool:
            parser.add_argument(self.flag, dest=self.name, action="store_true", help=self.help + remark)
            return
        parser.add_argument(
            self.flag, dest=self.name, action="append" if self.is_list else "store", help=self.help + remark,
            type=int if self.written is int else str, choices=("", *self.choices) if self.choices else None,
            metavar=self.metavar or (f"{{{','.join(self.choices)}}}" if self.choices else None),
        )  # fmt: skip

    def read(self, sources: Sequence[Values]) -> Any:
        """Return the field's value from the first source that has it, None if it was not given.

        Raises: InvalidError.
        """
        given = [source[self.name] for source in sources if source.get(self.name)]
        if not given and self.environ:
            given = list(filter(None, [os.environ.get(self.environ)]))
        if not given:
            return None
        return self.value_of([item for part in given for item in part] if self.adds else given[0], self.key)

    def value_of(self, value: Any, name: str) -> Any:
        """Return the field's value of a written value. Raises: InvalidError with that name of the option."""
        if self.choices and value not in self.choices:
            raise InvalidError(f"{name} {value[:40]!r}: want {' or '.join(self.choices)}")
        if self.wanted and value < 0:
            raise InvalidError(f"{name} {value}: want {self.wanted}")
        return self.parse(value)


def options_of(config: type) -> dict[str, tuple[str, Option]]:
    """Return field and option of each option of a configuration, by the option's name."""
    return dict(_options_of(config))


@cache  # hints are evaluated from text, which takes milliseconds; a parser asks for each flag
def _options_of(config: type) -> dict[str, tuple[str, Option]]:
    hints = get_type_hints(config, include_extras=True)
    found = {}
    for field in fields(config):
        for option in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(option, Option):
                named = option if option.name else Option(**{**vars(option), "name": field.name})
                found[named.name] = (field.name, named)
    return found


def option_of(config: type, name: str) -> Option:
    """Return an option by its name."""
    return _options_of(config)[name][1]


def add_arguments(
    parser: argparse.ArgumentParser, config: type, names: Iterable[str] = (), *, remark: str = ""
) -> None:
    """Add the flags of these options, or of all. remark: appended to the help of each."""
    for name in names or options_of(config):
        option_of(config, name).add_to(parser, remark=remark)


def given_by(options: argparse.Namespace) -> Values:
    """Return the values of a command line."""
    return {name: value for name, value in vars(options).items() if value}


def read(config: type, *sources: Values) -> dict[str, Any]:
    """Return the given fields of a configuration; the first source wins. Raises: InvalidError."""
    found = {field: option.read(sources) for field, option in options_of(config).values()}
    return {field: value for field, value in found.items() if value is not None}


def file_type(name: str, configs: Sequence[type], **more: Any) -> type[msgspec.Struct]:
    """Return the type of a configuration file with the options' keys. more: further keys and their types."""
    options = [option for config in configs for _, option in options_of(config).values()]
    known = {**{option.name: option.written for option in options}, **more}
    declared = [(field, written, written()) for field, written in known.items()]
    return msgspec.defstruct(name, declared, rename="camel", forbid_unknown_fields=True)


def file_keys(form: type[msgspec.Struct]) -> list[str]:
    """Return the keys of a configuration file, sorted."""
    return sorted(field.encode_name for field in msgspec.structs.fields(form))


def convert(content: object, form: type[msgspec.Struct]) -> Values:
    """Return the values of a file's content. Raises: msgspec.ValidationError."""
    found = msgspec.convert({} if content is None else content, form)
    return {name: value for name, value in msgspec.structs.asdict(found).items() if value}
