"""A process that is killed at one of its system calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """Stands for SIGKILL: no handler of errors sees it."""


def killing(call: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return call(*arguments, **named)

    return wrapped
