"""Types of fixtures that are functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

Running = Callable[..., AbstractAsyncContextManager[None]]
Told = Callable[[], Awaitable[list[tuple[str, str, str, str]]]]
Settle = Callable[[], Awaitable[None]]
