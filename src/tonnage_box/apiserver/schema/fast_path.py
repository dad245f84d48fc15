"""Fast check that an object is in normal form already, compiled from the schemas to msgspec types.

Nearly every object that a controller writes is. Only objects that fail this check take the slow path through the
decoder, which changes them or reports what is wrong.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from tonnage_box.apiserver.schema import schemas

_SOME = Meta(min_length=1)
# A type that no JSON value has: fields omitted when false are absent in normal form, or need the slow path.
_NEVER = Annotated[str, Meta(max_length=0, min_length=1)]
# Amounts whose canonical form can be told by looking: small numbers, and large ones that the next suffix does not
# divide (last three digits that 8 does not divide, so neither does 1024; for decimal suffixes, other than 000).
_NOT_BY_8 = (
    r"([0-9][02468][26]|[0-9][13579][048]|[0-9]{2}[13579]|[02468](04|12|20|28|36|44|52|60|68|76|84|92)"
    r"|[13579](00|08|16|24|32|40|48|56|64|72|80|88|96))"
)
_QUANTITY = Annotated[
    str,
    Meta(
        pattern=r"^(0|[1-9][0-9]{0,2}[munkMGT]?|(?!.*000m?$)[1-9][0-9]{3,11}m?"
        rf"|([1-9][0-9]{{0,2}}|10[01][0-9]|102[0-3])[KMGT]i|[1-9][0-9]{{0,4}}{_NOT_BY_8}[KMG]i)$"
    ),
]
_BASE64 = Annotated[str, Meta(pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]
# Times that exist: controllers parse them. Those of February 29 go the long way.
_MONTHS = r"((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_MOMENT = rf"(?!0000)[0-9]{{4}}-{_MONTHS}T([01][0-9]|2[0-3])(:[0-5][0-9]){{2}}"
_TIME = Annotated[str, Meta(pattern=rf"^{_MOMENT}Z\Z")]
_MICRO_TIME = Annotated[str, Meta(pattern=rf"^{_MOMENT}\.[0-9]{{6}}Z\Z")]
_WORDS: dict[str, Any] = {
    "str": str,
    "int": Annotated[int, Meta(ge=-(2**31) + 1, le=2**31 - 1)],
    "long": Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)],
    "number": float,
    "bool": bool,
    "bytes": _BASE64,
    "quantity": _QUANTITY,
    "intstr": int | str,
    "time": _TIME,
    "microtime": _MICRO_TIME,
    "any": dict[str, Any] | list[Any] | str | int | float | bool,
}


def is_normal(name: str, obj: dict[str, Any]) -> bool:
    """Whether obj is surely in normal form: right types, nothing unknown, nothing that would be changed or dropped."""
    try:
        msgspec.convert(obj, _struct(name))
    except msgspec.ValidationError:
        return False
    return True


@functools.cache
def _struct(name: str) -> Any:
    fields = schemas.struct(name).fields.values()
    # Field names may be Python's keywords, so they are numbered here and named for the wire.
    return msgspec.defstruct(
        name.rpartition(".")[2],
        [(f"f{i}", _type(f.type) if f.required else _optional(f), UNSET) for i, f in enumerate(fields)],
        rename={f"f{i}": field.name for i, field in enumerate(fields)},
        forbid_unknown_fields=True,
        gc=False,
    )


def _type(kind: schemas.Type) -> Any:
    if kind.word == "struct":
        return _struct(kind.struct)
    if kind.item is not None:
        inner = _type(kind.item)
        return list[inner] if kind.word == "[]" else dict[str, inner]  # type: ignore[valid-type]
    return _WORDS[kind.word]


def _optional(field: schemas.Field) -> Any:
    kind = field.type
    if not field.pointer:
        if kind.word == "bool":
            return _NEVER
        if kind.word == "str" or kind.item is not None:
            return Annotated[_type(kind), _SOME]
    return _type(kind)
