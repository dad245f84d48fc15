"""Durations, rates and distributions of a workload file. Converted to seconds and bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from random import Random
from typing import Any

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.quantity import to_bytes

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)/([smhd])")
_FORMS = "a value, uniform: [least, most], exponential: mean, lognormal: [median, sigma, most], choice: {value: weight}"
Reader = Callable[[Any], float]
Draw = Callable[[Random], float]


def duration(text: Any) -> float:
    """Seconds of "250ms", "90s", "1h30m". Raises: InvalidError."""
    parts = list(_PART.finditer(text)) if isinstance(text, str) else []
    if not parts or "".join(part[0] for part in parts) != text:
        raise InvalidError(f"{text!r} is no duration: write 250ms, 90s, 10m, 1h30m or 2d")
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)


def rate(text: Any) -> float:
    """Rate per second, of "400/h". Raises: InvalidError."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidError(f"{text!r} is no rate: write 2/s, 30/m, 400/h or 1000/d")
    return float(found[1]) / _UNITS[found[2]]


def size(text: Any) -> float:
    """Bytes of a quantity, more than none. Raises: InvalidError."""
    number = to_bytes(text) if isinstance(text, str) else 0
    if number <= 0:
        raise InvalidError(f"{text!r} is no size: write 512Mi or 10Gi")
    return float(number)


def distribution(given: Any, read: Reader) -> Draw:
    """A function that draws a value; `read` reads one. Raises: InvalidError for a form that is not known."""
    if not isinstance(given, dict):
        fixed = read(given)
        return lambda random: fixed
    if len(given) != 1 or (maker := _MAKERS.get(next(iter(given)))) is None:
        raise InvalidError(f"{given!r} is no distribution: there are {_FORMS}")
    return maker(next(iter(given.values())), read)


def _uniform(given: Any, read: Reader) -> Draw:
    least, most = (read(each) for each in _list(given, "uniform: [least, most]", 2, 2))
    if most < least:
        raise InvalidError(f"uniform: {given!r} has its least above its most")
    return lambda random: random.uniform(least, most)


def _exponential(given: Any, read: Reader) -> Draw:
    mean = read(given)
    if mean <= 0:
        raise InvalidError(f"exponential: {given!r} needs a mean above 0")
    return lambda random: random.expovariate(1 / mean)


def _lognormal(given: Any, read: Reader) -> Draw:
    parts = _list(given, "lognormal: [median, sigma] or [median, sigma, most]", 2, 3)
    median, sigma, most = read(parts[0]), parts[1], read(parts[2]) if len(parts) > 2 else math.inf
    if median <= 0 or not isinstance(sigma, (int, float)) or not 0 <= sigma <= 5:
        raise InvalidError(f"lognormal: {given!r} needs a median above 0 and a sigma from 0 to 5")
    return lambda random: min(most, random.lognormvariate(math.log(median), sigma))


def _choice(given: Any, read: Reader) -> Draw:
    if not isinstance(given, dict) or not given:
        raise InvalidError(f"choice: {given!r} is not {{value: weight, ...}}")
    weights = list(given.values())
    if not all(isinstance(w, (int, float)) and 0 <= w < math.inf for w in weights) or not sum(weights) > 0:
        raise InvalidError(f"choice: the weights of {given!r} are not numbers of which one is above 0")
    values = [read(value) for value in given]
    return lambda random: random.choices(values, weights)[0]


def _list(given: Any, form: str, least: int, most: int) -> list[Any]:
    if not isinstance(given, list) or not least <= len(given) <= most:
        raise InvalidError(f"{given!r} is not {form}")
    return given


_MAKERS: dict[Any, Callable[[Any, Reader], Draw]] = {
    "uniform": _uniform,
    "exponential": _exponential,
    "lognormal": _lognormal,
    "choice": _choice,
}
