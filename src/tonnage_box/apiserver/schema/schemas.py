"""Schemas of the served kinds: one text for OpenAPI, strict field validation and types.

The texts are data files of the groups of kinds: `schema.txt`, or a folder `schema` of a large group. A text begins a
group with `@core.v1`, and a comment with `#`; a line at the margin names a struct, an indented line one of its fields:

    Container: One program of a pod.
      name! str: Unique in the pod.
      env [EnvVar]+name

`!` must be given; types are str, int (32 bit), long, number, bool, bytes (base64), quantity, intstr, time, microtime,
any, a struct, `[T]` and `{T}` (a map by strings). `?` is a scalar whose empty value differs from none (Go: a pointer).
`+key` is a list that strategic merge patches by that key, `+` one it merges as a set, `~` keeps only the keys named.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = Path(__file__).parents[1] / "kinds"
"""The folder with a folder for each group of kinds."""
_FIELD = re.compile(r"  (\w+)(!?) (\S+?)(\?)?(?:(\+)(\w*))?(~)?(?:: (.+))?")
_STRUCT = re.compile(r"(\w+)(?:: (.+))?")
_SCALARS = frozenset(
    ["str", "int", "long", "number", "bool", "bytes", "quantity", "intstr", "time", "microtime", "any"]
)
_PREFIX = {"meta.v1": "io.k8s.apimachinery.pkg.apis."}


@dataclass(frozen=True, slots=True)
class Type:
    """A field's type. word: a scalar's name, "[]", "{}" or "struct"; item: element type; struct: full name."""

    word: str
    item: Type | None = None
    struct: str = ""

    @property
    def go(self) -> str:
        """As Go's decoder names it in its complaints."""
        if self.item is not None:
            return ("[]" if self.word == "[]" else "map[string]") + self.item.go
        if self.struct:
            return "v1." + self.struct.rpartition(".")[2]
        return {"str": "string", "int": "int32", "long": "int64", "number": "float64"}.get(self.word, self.word)


@dataclass(frozen=True, slots=True)
class Field:
    """One field. pointer: its empty value is preserved; merge_key: None (replaced), "" (a set) or the key."""

    name: str
    type: Type
    required: bool = False
    pointer: bool = False
    merge_key: str | None = None
    retain_keys: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class Struct:
    """One struct, with a short name such as `core.v1.Pod`."""

    name: str
    fields: dict[str, Field]
    text: str = ""

    @property
    def short(self) -> str:
        """`Pod`."""
        return self.name.rpartition(".")[2]

    @property
    def definition(self) -> str:
        """Its name in OpenAPI documents."""
        group = self.name.rpartition(".")[0]
        return _PREFIX.get(group, "io.k8s.api.") + self.name


@functools.cache
def struct(name: str) -> Struct:
    """The struct with a short name; read at the first question for it. Raises: KeyError."""
    return build(name, _blocks()[name])


def all_structs() -> dict[str, Struct]:
    """Every struct by its short name."""
    return {name: struct(name) for name in _blocks()}


@functools.cache
def _blocks() -> dict[str, str]:
    """The text of each struct by its short name. Most are never asked for, so no more is stored of them."""
    found: dict[str, str] = {}
    for group in sorted(KINDS.iterdir()):
        if not group.suffix and not group.name.startswith("_"):
            found |= texts(group)
    return found


def texts(group: Path) -> dict[str, str]:
    """The text of each struct of a group's folder by its short name. Raises: ValueError."""
    found: dict[str, str] = {}
    parts = group / "schema"
    for text in sorted(parts.iterdir()) if parts.is_dir() else [group / "schema.txt"]:
        found |= split(text.read_text(encoding="utf-8"))
    return found


def split(text: str) -> dict[str, str]:
    """The text of each struct of a schema text by the struct's short name. Raises: ValueError."""
    found: dict[str, str] = {}
    group, name = "", ""
    for line in text.splitlines():
        if line.startswith("@"):
            group, name = line[1:], ""
        elif line.startswith("  ") and name:
            found[name] += "\n" + line
        elif match := _STRUCT.fullmatch(line):
            name = f"{group}.{match[1]}"
            found[name] = line
        elif not line.startswith("#"):
            raise ValueError(f"schema text: cannot read {line!r}")
    return found


def _fields(block: str) -> Iterator[re.Match[str]]:
    for line in block.splitlines()[1:]:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise ValueError(f"schema text: cannot read {line!r}")
        yield match


def build(name: str, block: str) -> Struct:
    """The struct of that name from its text. Raises: ValueError."""
    group, known = name.rpartition(".")[0], _blocks()

    def resolve(word: str) -> Type:
        if word[0] in "[{":
            return Type(word[0] + word[-1], resolve(word[1:-1]))
        if word in _SCALARS:
            return Type(word)
        for prefix in (group, "core.v1", "meta.v1"):
            if f"{prefix}.{word}" in known:
                return Type("struct", None, f"{prefix}.{word}")
        raise ValueError(f"schema text: {name} uses the unknown type {word!r}")

    fields = {}
    for line in _fields(block):
        field, required, word, pointer, plus, key, tilde, about = line.groups()
        merge = key if plus else None
        fields[field] = Field(field, resolve(word), bool(required), bool(pointer), merge, bool(tilde), about or "")
    return Struct(name, fields, block.partition("\n")[0].partition(": ")[2])
