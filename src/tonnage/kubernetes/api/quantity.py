"""resource.Quantity: exact parsing and Kubernetes' canonical text ("30716Mi").

Amounts are whole nanos (1e-9), Kubernetes' finest unit. Finer input is rounded away from zero, larger than 2**63-1 is
cut there (apimachinery pkg/api/resource, ParseQuantity and CanonicalizeBytes).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

from tonnage.base.errors import InvalidError

NANO = 10**9
MAX = (2**63 - 1) * NANO
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY_SUFFIX = {v: k for k, v in _BINARY.items()}
_DECIMAL_SUFFIX = {v: k for k, v in _DECIMAL.items()}
_FORM = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,9}))?"
)


@dataclass(frozen=True, order=True)
class Quantity:
    """An amount in nanos, and its family of suffixes: BinarySI, DecimalSI, DecimalExponent."""

    nanos: int
    form: str = "DecimalSI"

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read a quantity. Raises: InvalidError."""
        if not isinstance(text, str) or len(text) > 128:
            raise _unreadable(text)
        return _parse(text)

    @property
    def value(self) -> int:
        """Whole units, rounded up (Quantity.Value)."""
        return -(-self.nanos // NANO)

    @property
    def milli(self) -> int:
        """Thousandths, rounded up (Quantity.MilliValue)."""
        return -(-self.nanos // 10**6)

    def __str__(self) -> str:
        """The canonical text."""
        if self.nanos == 0:
            return "0"
        whole = self.nanos % NANO == 0
        if self.form == "BinarySI" and whole and abs(self.nanos) >= 1024 * NANO:
            number, power = _strip(self.nanos // NANO, 1024, 6)
            return f"{number}{_BINARY_SUFFIX.get(power, '')}"
        number, power = _strip(self.nanos, 1000, 30)
        power -= 3
        if self.form == "DecimalExponent":
            return f"{number}e{power * 3}" if power else str(number)
        if power > 6:
            number, power = number * 1000 ** (power - 6), 6
        return f"{number}{_DECIMAL_SUFFIX[power]}"


_PLAIN = re.compile("([0-9]{1,18})([KMGTPE]i|[numkMGTPE]|)")
_PLAIN_NANOS = {suffix: NANO * 1024**power for suffix, power in _BINARY.items()} | {
    suffix: 1000 ** (power + 3) for suffix, power in _DECIMAL.items()
}


@functools.lru_cache(maxsize=4096)  # the same few amounts come again with every object
def _parse(text: str) -> Quantity:
    if plain := _PLAIN.fullmatch(text):  # nearly all: a fraction takes ten times as long
        suffix = plain[2]
        nanos = min(int(plain[1]) * _PLAIN_NANOS[suffix], MAX)
        return Quantity(nanos, "BinarySI" if suffix in _BINARY else "DecimalSI")
    match = _FORM.fullmatch(text)
    if match is None:
        raise _unreadable(text)
    number, suffix, exponent = Fraction(match["number"]), match["suffix"] or "", match["exponent"]
    if suffix in _BINARY:
        form, factor = "BinarySI", Fraction(1024) ** _BINARY[suffix]
    elif exponent is not None:
        form, factor = "DecimalExponent", Fraction(10) ** max(-60, min(60, int(exponent)))
    else:
        form, factor = "DecimalSI", Fraction(1000) ** _DECIMAL[suffix]
    return Quantity(_round_away(number * factor * NANO), form)


def _unreadable(text: object) -> InvalidError:
    return InvalidError(
        f"{str(text)[:40]!r} is not a quantity: want a number and perhaps a suffix (Ki, Mi, Gi, k, M, G, m ...)"
    )


def _round_away(nanos: Fraction) -> int:
    whole = -(-abs(nanos.numerator) // nanos.denominator)
    return min(whole, MAX) * (-1 if nanos < 0 else 1)


def _strip(number: int, base: int, limit: int) -> tuple[int, int]:
    power = 0
    while power < limit and number % base == 0:
        number, power = number // base, power + 1
    return number, power


def to_bytes(text: str) -> int:
    """A quantity as whole bytes, rounded up. Raises: InvalidError."""
    return Quantity.parse(text).value


def from_bytes(number: int) -> str:
    """Bytes as Kubernetes prints them: 28616687616 -> "27291Mi"."""
    return str(Quantity(number * NANO, "BinarySI"))
