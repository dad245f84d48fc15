"""File systems on loop devices: what the fixture makes."""

from __future__ import annotations

from collections.abc import Callable

Mounted = Callable[..., int]
MI = 1 << 20
